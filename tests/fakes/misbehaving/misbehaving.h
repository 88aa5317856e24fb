// SPDX-License-Identifier: Apache-2.0
// Gates that compute what gate/scalar computes and then misbehave: for tests of containment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "variants/variant.h"

namespace muse::misbehaving {

/// gate/scalar's argument block with what a fake needs besides.
struct Block {
  static constexpr size_t kInnerBytes = 2048;
  alignas(128) std::byte inner[kInnerBytes];
  int64_t after;  ///< launches of this configuration that go well before it misbehaves
  uint16_t* out;  ///< bf16 [elements]
  int64_t elements;
};

/// A copy of gate/scalar under another name with the tunable `after` {0, 20} and its own entry.
Variant fake_gate(const char* name, void (*entry)(const Arguments&, int launch));

/// Runs gate/scalar; false while the launches that go well last (one counter per value of `after`
/// and process, so a variant never shares it with another one that is under test).
bool run_until_due(const Arguments& arguments, int launch);

const Block& block(const Arguments& arguments);

}  // namespace muse::misbehaving
