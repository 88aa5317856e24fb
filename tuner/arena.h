// SPDX-License-Identifier: Apache-2.0
// One shape's buffers on the target, each between guard bands, and what validation does with them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/backend.h"
#include "tuner/inputs.h"

namespace muse::tuner {

/// Before and after every buffer. Wider than a cache page, so that a read through page -1 lands in
/// it.
inline constexpr int64_t kGuardBytes = 65536;
/// NaN like the poison, so that what is read out of bounds shows in the result.
inline constexpr uint8_t kGuardByte = 0xFF;
/// NaN in e4m3 as well; takes turns with the first, so that no stray store can hide as a guard.
inline constexpr uint8_t kOtherGuardByte = 0x7F;
inline constexpr uint8_t kPoisonByte = 0xFF;  ///< NaN in bf16, f32, f64 and e4m3; -1 in integers

/// What the sizes of a problem's buffers follow from.
struct Layout {
  Problem problem;
  int64_t cache_pages, rope_positions;
};
Layout layout(const Inputs& inputs);

class Arena {
 public:
  /// Allocates and uploads the inputs, allocates hand-offs, outputs and taps (poisoned). Throws
  /// TrialError(kOom).
  Arena(Backend& backend, const Inputs& inputs);
  /// The same with nothing uploaded: inputs and caches hold anything. With `lender` its caches
  /// serve, whose guards are that arena's; it must outlive this one.
  Arena(Backend& backend, const Layout& layout, const Arena* lender = nullptr);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Pointers for a candidate; partials for `partials` are allocated at first use and kept. Taps
  /// are null unless asked for.
  Buffers buffers(const Handoff& partials, bool taps);
  /// A workspace area of a candidate, kept by `owner` (a candidate key): zeroed where the workspace
  /// says so, else poisoned.
  void* workspace(const std::string& owner, const Workspace& workspace);

  struct Area {
    std::string name;  ///< BufferSpec::name; "partial_o@<S>_<type>"; "workspace@<owner>"
    Element element;
    BufferRole role;
    int64_t bytes;
    void* address;
  };
  std::vector<Area> areas() const;
  const Area& area(std::string_view name) const;  ///< throws std::logic_error if there is none

  /// Releases partials and workspaces: what buffers() and workspace() have allocated.
  void release_extras();

  void poison(std::string_view name);  ///< kPoisonByte over the whole buffer
  void upload(std::string_view name, const void* host, int64_t bytes);
  std::vector<uint8_t> download(std::string_view name) const;
  /// `bytes` from `offset` on into memory of the caller, who may reuse it: a fresh vector of a
  /// large pool costs more than the copy.
  void download(std::string_view name, int64_t offset, void* host, int64_t bytes) const;

  struct BrokenGuard {
    std::string buffer;
    int64_t offset;  ///< bytes from the buffer's start; negative = before it
    uint8_t got, expected;
  };
  std::optional<BrokenGuard> broken_guard() const;
  /// Fills every guard band with `byte`, which broken_guard() expects from then on.
  void repair_guards(uint8_t byte = kGuardByte);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muse::tuner
