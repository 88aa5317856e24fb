// SPDX-License-Identifier: Apache-2.0
// combine/dealt: partials to O and O through the gate, for requests of very different numbers of
// partials. CTAs are dealt pieces of requests: many rows of few partials each, or one row of many.
#pragma once

#include "variants/device/attention_keys.cuh"
#include "variants/device/combine.cuh"
#include "variants/device/dealing.cuh"
#include "variants/device/partials.cuh"

namespace muse::combine_dealt {

struct Args {
  device::CombineInputs in;
  const uint16_t* qkv;  // bf16 [T, (2*Hq+2*Hkv)*D]
  uint16_t* out;        // bf16 [T, Hq*D]
  uint16_t* o_tap;      // bf16 [T, Hq, D], null when timed
  int32_t batch, num_kv_heads;
};

inline constexpr int kThreads = 256, kCtasPerSm = 4;

#if defined(MUSE_DEVICE_CODE)

/// Of 16 lanes, four dims of a row in each.
inline constexpr int kLogTeams = 4, kTeams = 1 << kLogTeams;
/// Partials of a row that a team has under way at a time.
inline constexpr int kRound = 8;
static_assert(kTeams * device::kChunksPerRow == kThreads && kRound <= device::kChunksPerRow,
              "a lane weighs one of them");

/// Teams that share out the partials of a row, where its request has so many of them: log2.
template <class C>
__device__ __forceinline__ int log_teams(int splits) {
  return splits <= C::few ? 0 : splits <= 4 * kRound ? 2 : kLogTeams;
}

/// What the warps of a CTA found, each of one row.
struct WarpParts {
  device::F32x4 o[kTeams / 2][device::kChunksPerRow];
  device::RowStats stats[kTeams / 2];
};

/// The partials that a team takes of a row: `count` of them, each `step` splits after the other.
struct TeamParts {
  int first, step, count;
};

/// Four dims of a partial as they lie in memory.
template <bool kBf16>
__device__ __forceinline__ device::F32x4 load_chunk(const void* partials, int64_t chunk) {
  if constexpr (kBf16) {
    const device::Words2 words =
        device::load_words2(static_cast<const uint16_t*>(partials) + chunk * 4);
    const device::F32x2 low = device::bf16x2_to_f32x2(words.word[0]);
    const device::F32x2 high = device::bf16x2_to_f32x2(words.word[1]);
    return {low.low, low.high, high.low, high.high};
  } else {
    return static_cast<const device::F32x4*>(partials)[chunk];
  }
}

/// Their sum by weights, not normalised. `row` counts over [T, Hq].
template <bool kBf16>
__device__ __forceinline__ device::RowPart sum_parts(const device::CombineInputs& in, int row,
                                                     const TeamParts& parts, int chunk) {
  const int64_t stride = static_cast<int64_t>(in.tokens) * in.num_q_heads;  // rows of a split
  const int64_t step = parts.step * stride;
  int64_t at = parts.first * stride + row;
  device::RowPart all{{}, {device::kNoMaximum, 0.0F}};
  // The warp's two teams together: as many rounds as either has.
#pragma unroll 1
  for (int left = parts.count; __any_sync(device::kWholeWarp, left > 0); left -= kRound) {
    float lse = device::minus_infinity();
    if (chunk < device::smaller(left, kRound)) lse = in.partial_lse[at + chunk * step];
    device::F32x4 part[kRound];
#pragma unroll
    for (int i = 0; i < kRound; ++i, at += step) {
      part[i] = {};
      if (i < left) part[i] = load_chunk<kBf16>(in.partial_o, at * device::kChunksPerRow + chunk);
    }
    const float max = fmaxf(all.stats.max, device::max_of_lanes<device::kChunksPerRow>(lse));
    const float weight = device::exp2_approx(lse - max);  // of an empty split 0
    const float before = device::exp2_approx(all.stats.max - max);
    const float sum = device::sum_of_lanes<device::kChunksPerRow>(weight);
    all.stats = {max, all.stats.sum * before + sum};
#pragma unroll
    for (int d = 0; d < 4; ++d) all.o.value[d] *= before;
#pragma unroll
    for (int i = 0; i < kRound; ++i) {
      const float w = __shfl_sync(device::kWholeWarp, weight, i, device::kChunksPerRow);
      if (w != 0) {  // an empty split's partial holds anything, NaN too
#pragma unroll
        for (int d = 0; d < 4; ++d) all.o.value[d] += w * part[i].value[d];
      }
    }
  }
  return all;
}

/// Of a row that both teams of a warp have taken parts of.
__device__ __forceinline__ device::RowPart sum_of_both_teams(const device::RowPart& mine) {
  const auto of_other = [](float value) {
    return __shfl_xor_sync(device::kWholeWarp, value, device::kChunksPerRow);
  };
  const float max = fmaxf(mine.stats.max, of_other(mine.stats.max));
  const float weight = device::exp2_approx(mine.stats.max - max);
  const float sum = mine.stats.sum * weight;
  device::RowPart both{{}, {max, sum + of_other(sum)}};
#pragma unroll
  for (int d = 0; d < 4; ++d) {
    const float own = mine.o.value[d] * weight;
    both.o.value[d] = own + of_other(own);
  }
  return both;
}

/// Gates are inputs of the step: those of all rows are on their way into L2 before it is known who
/// reads which.
__device__ __forceinline__ void fetch_gates(const Args& args, int thread, int threads) {
  constexpr int kSectors = device::kHeadDim * 2 / 32;
  const int heads = args.in.num_q_heads, before = heads + 2 * args.num_kv_heads;
#pragma unroll 1
  for (int i = thread; i < args.in.tokens * heads * kSectors; i += threads) {
    const int row = i / kSectors, token = row / heads;
    const int64_t at = device::row_start(token, before + heads, before + row - token * heads);
    device::prefetch_to_l2(args.qkv + at + i % kSectors * 16);
  }
}

template <class C>
__device__ __forceinline__ void combine_piece(const Args& args, const device::DealtPiece& piece,
                                              WarpParts& shared) {
  const int heads = args.in.num_q_heads, rows = args.in.q_len * heads;
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % device::kChunksPerRow;
  const int team = thread / device::kChunksPerRow;
  const int splits = args.in.n_splits[piece.request];
  const int log = log_teams<C>(splits), teams = 1 << log, here = kTeams >> log;  // rows of the CTA
  // The row that the team helps to add up, and the one that it finishes.
  const int added = piece.index * here + (team >> log), ended = piece.index * here + team;
  const bool ends = team < here && ended < rows;
  const int row = piece.request * rows + (ends ? ended : 0), token = row / heads;
  const int before = heads + 2 * args.num_kv_heads;
  device::Words2 gate = {};
  if (ends) {
    const int64_t at = device::row_start(token, before + heads, before + row - token * heads);
    gate = device::load_words2(args.qkv + at + chunk * 4);
  }
  const int first = team & (teams - 1);
  const TeamParts parts{first, teams, added < rows ? (splits - first + teams - 1) >> log : 0};
  const int from = piece.request * rows + added;
  device::RowPart all = args.in.bf16_partials ? sum_parts<true>(args.in, from, parts, chunk)
                                              : sum_parts<false>(args.in, from, parts, chunk);
  if (teams > 1) {
    all = sum_of_both_teams(all);
    const int warp = team / 2;
    if (team % 2 == 0) shared.o[warp][chunk] = all.o;
    if (team % 2 == 0 && chunk == 0) shared.stats[warp] = all.stats;
    __syncthreads();
    if (2 * warp >= here) return;  // whole warps
    const int warps = teams / 2, at = device::smaller(team, here - 1) * warps;
    all = device::merge_parts<kTeams / 2>(
        warps, chunk, [&](int i) { return shared.stats[at + i]; },
        [&](int i) { return shared.o[at + i][chunk]; });
  }
  const float factor = device::output_factor(1.0F, all.stats.sum);
#pragma unroll
  for (int d = 0; d < 4; ++d) all.o.value[d] *= factor;
  device::store_gated(args.out, args.o_tap, row, gate, chunk, all.o, ends);
}

template <class C>
__global__ void __launch_bounds__(kThreads, kCtasPerSm) combine(const __grid_constant__ Args args) {
  __shared__ device::DealtPiece piece;
  __shared__ WarpParts shared;
  const int thread = static_cast<int>(threadIdx.x), ctas = static_cast<int>(gridDim.x);
  fetch_gates(args, static_cast<int>(blockIdx.x) * kThreads + thread, ctas * kThreads);
  device::wait_for_predecessor();
  device::allow_successor();
  const int rows = args.in.q_len * args.in.num_q_heads;
  int place = static_cast<int>(blockIdx.x);
#pragma unroll 1
  while (true) {
    if (thread < 32) {
      device::deal_piece(
          place, args.batch,
          [&](int request) {
            if (request >= args.batch) return 0;
            const int log_here = kLogTeams - log_teams<C>(args.in.n_splits[request]);
            return (rows + (1 << log_here) - 1) >> log_here;
          },
          &piece);
    }
    __syncthreads();
    const device::DealtPiece own = piece;
    if (own.count == 0) return;
    combine_piece<C>(args, own, shared);
    place += ctas;
    if (place >= own.total) return;
    __syncthreads();  // all have read what is written anew
  }
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::combine_dealt
