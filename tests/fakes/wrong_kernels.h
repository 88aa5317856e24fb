// SPDX-License-Identifier: Apache-2.0
// The faults planted into kernels for GPUs, and who has to notice each first. The kernels lie in
// tests/fakes/misbehaving.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tuner/gates.h"
#include "variants/lengths.h"

namespace muse::fakes {

struct WrongKernel {
  std::string kind;       ///< in words
  std::string candidate;  ///< its key
  tuner::Gate gate;
  std::string buffer;  ///< of the failure, without what follows '@'
  Shape shape;
};
/// What a test over it is called.
inline void PrintTo(const WrongKernel& it, std::ostream* out) { *out << it.kind; }

std::vector<WrongKernel> wrong_kernels();

/// The same kernels without a fault: each stage alone, and all in a pipeline.
std::vector<std::string> right_kernels();

}  // namespace muse::fakes
