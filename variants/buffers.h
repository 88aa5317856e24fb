// SPDX-License-Identifier: Apache-2.0
// The buffers of one decode step and the hand-offs between stages.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "variants/problem.h"

namespace muse {

enum class Stage : uint8_t { kPrepare, kAttention, kCombine, kGate };
inline constexpr int kStageCount = 4;
std::string_view name(Stage stage);

/// The contiguous stages a candidate covers, both ends included.
struct Span {
  Stage first;
  Stage last;
  auto operator<=>(const Span&) const = default;
  bool covers(Stage s) const { return first <= s && s <= last; }
};
inline constexpr Span kWholeStep{Stage::kPrepare, Stage::kGate};
/// "attention", "attention..combine".
std::string_view name(Span span);

enum class Element : uint8_t { kBf16, kE4m3, kF32, kI32, kI64, kByte };
int64_t size_bytes(Element element);

enum class PartialType : uint8_t { kF32, kBf16 };

/// What passes between two stages. kQkv enters prepare, kOut leaves gate.
enum class HandoffKind : uint8_t { kQkv, kQ8, kPartials, kO, kOut };
std::string_view name(HandoffKind kind);

struct Handoff {
  HandoffKind kind = HandoffKind::kQkv;
  PartialType partial_type = PartialType::kF32;  ///< kPartials only
  int64_t split_capacity = 0;                    ///< kPartials only: S
  auto operator<=>(const Handoff&) const = default;
};

/// Every pointer lies on the target. Roles: see buffer_specs().
struct Buffers {
  const uint16_t* qkv = nullptr;           // bf16 [T, (2*Hq+2*Hkv)*D]
  const int64_t* positions = nullptr;      // [T]
  const int64_t* cache_loc = nullptr;      // [T] flat cache rows
  const int32_t* seq_lens = nullptr;       // [B] cached tokens before the step
  const int32_t* cache_seqlens = nullptr;  // [B] seq_lens + L
  const int32_t* cu_seqlens_q = nullptr;   // [B+1]
  const int32_t* page_table = nullptr;     // [B, max_pages]
  const float* k_scale = nullptr;          // [1]
  const float* v_scale = nullptr;          // [1]
  const float* cos_sin = nullptr;          // f32 [positions, D], null without RoPE
  uint8_t* k_cache = nullptr;              // e4m3 [pages, ps, Hkv, D]
  uint8_t* v_cache = nullptr;              // e4m3 [pages, ps, Hkv, D]
  uint8_t* q8 = nullptr;                   // hand-off Q8: e4m3 [T, Hq, D]
  void* partial_o = nullptr;     // hand-off Partials: f32 or bf16 [S, T, Hq, D] normalised
  float* partial_lse = nullptr;  // hand-off Partials: f32 base 2 [S, T, Hq]
  int32_t* n_splits = nullptr;   // hand-off Partials: [B], 1..S; later splits are not read
  uint16_t* o = nullptr;         // hand-off O: bf16 [T, Hq, D]
  uint16_t* out = nullptr;       // bf16 [T, Hq*D]
  uint8_t* q8_tap = nullptr;     // e4m3 [T, Hq, D]; null when timed
  uint16_t* o_tap = nullptr;     // bf16 [T, Hq, D]; null when timed
  int64_t split_capacity = 0;    // S of the Partials above
  PartialType partial_type = PartialType::kF32;
};

enum class BufferRole : uint8_t { kInput, kInOut, kHandoff, kOutput, kTap, kWorkspace };

/// One buffer's name, type and size, so that allocation, poison and guard bands need no list.
struct BufferSpec {
  std::string_view name;  ///< the member's name in Buffers
  Element element;
  int64_t count;  ///< elements
  BufferRole role;
  int64_t bytes() const { return count * size_bytes(element); }
};

/// Every buffer of a problem in the order of Buffers, taps included; partials for `partials` (left
/// out where its kind is not kPartials). cache_pages: pages per pool. rope_positions: rows of
/// cos_sin, which is left out without RoPE.
std::vector<BufferSpec> buffer_specs(const Problem& problem, int64_t cache_pages,
                                     int64_t rope_positions, const Handoff& partials);

/// Sets the member of that name. The pointer's type follows the spec. Throws std::logic_error on an
/// unknown name.
void set_buffer(Buffers& buffers, std::string_view name, void* address);

}  // namespace muse
