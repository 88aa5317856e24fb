// SPDX-License-Identifier: Apache-2.0
// What happens to the result of an attention CTA once its warps have merged: it is a partial for a
// combine, or O, or goes through the gate; and before that it may be merged with those of other
// CTAs of the request, over shared memory within a cluster and by tickets through memory.
//
// A kernel whose grid is (splits, groups of kv heads, requests) has these tunables in C:
//   splits         CTAs of a request and group. Requests with few keys use the first ones only
//   cluster        how many of them form a cluster and merge first; divides splits
//   ticket         splits > cluster: 1 = whoever comes last merges all, 0 = they stay partials
//   gate           1 = out instead of O; needs a merge of all
//   partial_bf16   type of partials
//   warps, heads_per_cta
//
// Order of calls, in all threads:
//   begin()        at the very start, before anything can keep warps apart
//   needed(rows)   false: wait_for_predecessor(), leave(), return
//   finish(...)    after wait_for_predecessor() and a barrier behind the CTA's own merge.
//                  CTAs without keys that are needed skip their loop and come here too
#pragma once

#include "variants/device/attention_keys.cuh"
#include "variants/device/partials.cuh"
#include "variants/device/ptx.cuh"
#include "variants/device/rows.cuh"
#include "variants/numerics.h"

namespace muse::device {

/// Shared memory that a CTA of `rows` query rows needs for what its peers send, apart from all that
/// it uses before: a peer may be ahead. Aligned to 16 bytes.
MUSE_HOST_DEVICE constexpr int inbox_bytes(int rows, int cluster) {
  const int slots = cluster == 1 ? 0 : (rows + cluster - 1) / cluster * cluster;
  return slots * (kHeadDim + 2) * static_cast<int>(sizeof(float));
}

#if defined(MUSE_DEVICE_CODE)

/// The rows of a CTA: row h * rows_per_head + r is row r of its kv head h (see query_row()).
struct CtaRows {
  int request, first_head, rows_per_head;
  int count;          // of the kv heads there are
  int split, splits;  // which of the request's splits that have keys; none from `splits` on

  bool __device__ __forceinline__ has_keys() const { return split < splits; }
};

template <class C>
__device__ __forceinline__ CtaRows cta_rows(const AttentionArgs& args, int splits) {
  CtaRows rows;
  rows.request = static_cast<int>(blockIdx.z);
  rows.first_head = static_cast<int>(blockIdx.y) * C::heads_per_cta;
  rows.rows_per_head = args.q_len * args.group;
  rows.count = smaller(C::heads_per_cta, args.num_kv_heads - rows.first_head) * rows.rows_per_head;
  rows.split = static_cast<int>(blockIdx.x);
  rows.splits = splits;
  return rows;
}

/// Sums over the 16 lanes that hold a row.
__device__ __forceinline__ float sum_of_row(float value) {
#pragma unroll
  for (int distance = 1; distance < kChunksPerRow; distance *= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  }
  return value;
}

/// `kParts` parts of a row's four dims as one; always in this order.
template <int kParts>
__device__ __forceinline__ RowPart merge_parts(const RowPart (&parts)[kParts]) {
  RowPart all{{}, {kNoMaximum, 0.0F}};
#pragma unroll
  for (int i = 0; i < kParts; ++i) all.stats.max = fmaxf(all.stats.max, parts[i].stats.max);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float weight = exp2_approx(parts[i].stats.max - all.stats.max);
    all.stats.sum += weight * parts[i].stats.sum;
#pragma unroll
    for (int j = 0; j < 4; ++j) all.o.value[j] += weight * parts[i].o.value[j];
  }
  return all;
}

template <class C>
class Epilogue {
 public:
  static constexpr int kThreads = C::warps * 32;
  static constexpr int kCluster = C::cluster;
  static constexpr int kParts = C::splits / C::cluster;
  static constexpr bool kFinal = kParts == 1 || C::ticket != 0;
  static_assert(C::splits % C::cluster == 0, "clusters are whole");
  static_assert(C::gate == 0 || kFinal, "the gate takes O");

  static __device__ __forceinline__ void begin() {
    if constexpr (kCluster > 1) arrive_at_cluster();
  }

  /// Whether the CTA has keys or stands in a cluster with one that has.
  static __device__ __forceinline__ bool needed(const CtaRows& rows) {
    return rows.split / kCluster * kCluster < rows.splits;
  }
  /// Of a CTA that is not: whoever arrives also waits.
  static __device__ __forceinline__ void leave() {
    if constexpr (kCluster > 1) wait_for_cluster();
  }

  /// Where four dims of O go, and their gate.
  struct Output {
    int64_t head;  // index into [T, Hq]
    Words2 gate;
  };
  /// Of the thread's first item; its load is under way when this returns. For finish(): called
  /// early, whether or not rows.splits is known, the load is over by then.
  static __device__ __forceinline__ Output first_output(const AttentionArgs& args,
                                                        const CtaRows& rows) {
    const int row = thread() / kChunksPerRow * kCluster + rank(rows);
    return output_of(args, rows, smaller(row, rows.count - 1), thread() % kChunksPerRow);
  }

  /// merged(row, chunk) -> RowPart: what this CTA has of dims 4*chunk..4*chunk+3, not normalised;
  /// not called in a CTA without keys. inbox: inbox_bytes() of shared memory.
  template <class Merged>
  static __device__ __forceinline__ void finish(const AttentionArgs& args, const CtaRows& rows,
                                                unsigned char* inbox, const Merged& merged) {
    finish(args, rows, inbox, merged, first_output(args, rows));
  }
  template <class Merged>
  static __device__ __forceinline__ void finish(const AttentionArgs& args, const CtaRows& rows,
                                                unsigned char* inbox, const Merged& merged,
                                                const Output& first) {
    if constexpr (kCluster == 1) {
      hand_out(args, rows, first, merged);
    } else {
      wait_for_cluster();  // of begin(): the peers are there
      send(rows, inbox, merged);
      release_to_cluster();
      wait_for_cluster();  // what peers sent is here, and nobody will write to this CTA again
      const int peers = smaller(kCluster, rows.splits - rows.split / kCluster * kCluster);
      hand_out(args, rows, first, [&](int row, int chunk) {
        return received(rows, inbox, row / kCluster, chunk, peers);
      });
    }
  }

 private:
  /// Partials as partials.cuh stores them: S is kParts.
  struct Left {
    static constexpr int splits = kFinal ? 1 : kParts;
    static constexpr int partial_bf16 = C::partial_bf16;
  };
  /// A row belongs to the cluster's CTA number row % kCluster; this one's are rank, rank + kCluster
  /// and so on, `slots` of them, and 16 neighbouring lanes take one.
  static __device__ __forceinline__ int rank(const CtaRows& rows) { return rows.split % kCluster; }
  static __device__ __forceinline__ int slots(const CtaRows& rows) {
    return (rows.count - rank(rows) + kCluster - 1) / kCluster;
  }
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }

  static __device__ __forceinline__ Output output_of(const AttentionArgs& args, const CtaRows& rows,
                                                     int row, int chunk) {
    const int in_group = row / rows.rows_per_head;
    Output output{};
    output.head = query_row(args, rows.request, rows.first_head + in_group,
                            row - in_group * rows.rows_per_head)
                      .head;
    if constexpr (C::gate != 0) {
      const int heads = args.num_q_heads, before = heads + 2 * args.num_kv_heads;
      const int64_t token = output.head / heads;
      const int head = static_cast<int>(output.head - token * heads);
      output.gate = load_constant_words2<LoadHint::kDefault>(
          args.qkv + row_start(token, before + heads, before + head) + chunk * 4);
    }
    return output;
  }

  /// body(output, slot, row, chunk, exists) for the thread's items, whole warps at a time.
  template <class Body>
  static __device__ __forceinline__ void for_each_item(const AttentionArgs& args,
                                                       const CtaRows& rows, Output output,
                                                       const Body& body) {
    const int items = slots(rows) * kChunksPerRow;
    const int chunk = thread() % kChunksPerRow;
    for (int item = thread(); item - thread() % 32 < items; item += kThreads) {
      const bool exists = item < items;
      const int slot = exists ? item / kChunksPerRow : 0;
      const int row = slot * kCluster + rank(rows);
      if (item >= kThreads) output = output_of(args, rows, row, chunk);
      body(output, row, chunk, exists);
    }
  }

  // Within a cluster. ---------------------------------------------------------------------------

  /// Four dims that peer `from` sent of the CTA's row number `slot`, in the CTA's shared memory.
  static __device__ __forceinline__ F32x4* inbox_o(unsigned char* inbox, int slot, int from,
                                                   int chunk) {
    return reinterpret_cast<F32x4*>(inbox) + (slot * kCluster + from) * kChunksPerRow + chunk;
  }
  static __device__ __forceinline__ RowStats* inbox_stats(const CtaRows& rows, unsigned char* inbox,
                                                          int slot, int from) {
    const int most = (rows.count + kCluster - 1) / kCluster;  // slots of any CTA of the cluster
    return reinterpret_cast<RowStats*>(inbox_o(inbox, most, 0, 0)) + slot * kCluster + from;
  }

  /// Each row goes to the CTA that it belongs to.
  template <class Merged>
  static __device__ __forceinline__ void send(const CtaRows& rows, unsigned char* inbox,
                                              const Merged& merged) {
    if (!rows.has_keys()) return;
    const int chunk = thread() % kChunksPerRow, self = rank(rows);
    for (int row = thread() / kChunksPerRow; row < rows.count; row += kThreads / kChunksPerRow) {
      const RowPart part = merged(row, chunk);
      const int slot = row / kCluster, to = row % kCluster;
      store_to_peer(inbox_o(inbox, slot, self, chunk), to,
                    Words4{{f32_bits(part.o.value[0]), f32_bits(part.o.value[1]),
                            f32_bits(part.o.value[2]), f32_bits(part.o.value[3])}});
      if (chunk == 0) {
        store_to_peer(inbox_stats(rows, inbox, slot, self), to,
                      Words2{{f32_bits(part.stats.max), f32_bits(part.stats.sum)}});
      }
    }
  }

  static __device__ __forceinline__ RowPart received(const CtaRows& rows, unsigned char* inbox,
                                                     int slot, int chunk, int peers) {
    RowPart parts[kCluster];
#pragma unroll
    for (int from = 0; from < kCluster; ++from) {
      parts[from] = {{}, {kNoMaximum, 0.0F}};
      if (from >= peers) continue;  // has no keys and sent nothing
      parts[from] = {*inbox_o(inbox, slot, from, chunk), *inbox_stats(rows, inbox, slot, from)};
    }
    return merge_parts(parts);
  }

  // Out of it. ----------------------------------------------------------------------------------

  /// own(row, chunk) -> RowPart of the rows that belong to this CTA.
  template <class Own>
  static __device__ __forceinline__ void hand_out(const AttentionArgs& args, const CtaRows& rows,
                                                  const Output& first, const Own& own) {
    const float v_scale = __ldg(args.v_scale);
    const int part = rows.split / kCluster, parts = ceil_div(rows.splits, kCluster);
    if constexpr (!kFinal) {
      if (rows.split == 0 && rows.first_head == 0 && thread() == 0) {
        store_split_count<Left>(args, rows.request, parts);
      }
    }
    for_each_item(args, rows, first, [&](const Output& output, int row, int chunk, bool exists) {
      const RowPart mine = own(row, chunk);
      if (kParts > 1 && kFinal && parts > 1) {
        if (exists) leave_part(args, rows, part, row, chunk, mine);
      } else {
        store(args, output, part, chunk, mine, v_scale, exists);
      }
    });
    if constexpr (kParts > 1 && kFinal) {
      if (parts == 1 || slots(rows) == 0 || !comes_last(args, rows, parts)) return;
      for_each_item(args, rows, first, [&](const Output& output, int row, int chunk, bool exists) {
        store(args, output, 0, chunk, gathered(args, rows, row, chunk, parts), v_scale, exists);
      });
    }
  }

  /// All lanes of a row together. `part`: of a partial, its number.
  static __device__ __forceinline__ void store(const AttentionArgs& args, const Output& output,
                                               int part, int chunk, RowPart row, float v_scale,
                                               bool exists) {
    const float factor = output_factor(v_scale, row.stats.sum);
#pragma unroll
    for (int j = 0; j < 4; ++j) row.o.value[j] *= factor;
    if constexpr (C::gate != 0) {
      store_gated(args, output, chunk, row.o, exists);
    } else if (exists) {
      store_output<Left>(args, part, output.head, chunk, row.o);
      if (chunk == 0) {
        store_log_sum_exp<Left>(args, part, output.head, row.stats.max, row.stats.sum);
      }
    }
  }

  static __device__ __forceinline__ void store_gated(const AttentionArgs& args,
                                                     const Output& output, int chunk,
                                                     const F32x4& o, bool exists) {
    // The gate takes O as it would lie in memory: rounded.
    const Words2 rounded{
        {f32x2_to_bf16x2(o.value[0], o.value[1]), f32x2_to_bf16x2(o.value[2], o.value[3])}};
    const F32x2 low = bf16x2_to_f32x2(rounded.word[0]), high = bf16x2_to_f32x2(rounded.word[1]);
    const float squares = sum_of_row(low.low * low.low + low.high * low.high + high.low * high.low +
                                     high.high * high.high);
    const float r = rsqrtf(squares * (1.0F / kHeadDim) + 1e-5F);
    if (!exists) return;
    const int64_t to = output.head * kHeadDim + chunk * 4;
    const F32x2 g[2] = {bf16x2_to_f32x2(output.gate.word[0]), bf16x2_to_f32x2(output.gate.word[1])};
    const float s[4] = {sigmoid(g[0].low), sigmoid(g[0].high), sigmoid(g[1].low),
                        sigmoid(g[1].high)};
    if (args.o_tap != nullptr) store_words2(args.o_tap + to, rounded);
    store_words2(args.out + to, {{f32x2_to_bf16x2(low.low * r * s[0], low.high * r * s[1]),
                                  f32x2_to_bf16x2(high.low * r * s[2], high.high * r * s[3])}});
  }

  // Through memory. -----------------------------------------------------------------------------

  /// Which of all requests' groups of kv heads.
  static __device__ __forceinline__ int64_t group() {
    return static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  }
  /// Rows of a whole group.
  static __device__ __forceinline__ int64_t width(const CtaRows& rows) {
    return C::heads_per_cta * rows.rows_per_head;
  }

  static __device__ __forceinline__ F32x4* part_o(const AttentionArgs& args, const CtaRows& rows,
                                                  int part, int row) {
    return reinterpret_cast<F32x4*>(args.part_o) +
           ((group() * kParts + part) * width(rows) + row) * kChunksPerRow;
  }
  static __device__ __forceinline__ RowStats* part_stats(const AttentionArgs& args,
                                                         const CtaRows& rows, int row) {
    return reinterpret_cast<RowStats*>(args.part_stats) + (group() * width(rows) + row) * kParts;
  }

  static __device__ __forceinline__ void leave_part(const AttentionArgs& args, const CtaRows& rows,
                                                    int part, int row, int chunk,
                                                    const RowPart& mine) {
    part_o(args, rows, part, row)[chunk] = mine.o;
    if (chunk == 0) part_stats(args, rows, row)[part] = mine.stats;
  }

  /// Whether all others that have parts of this CTA's rows have left them: those of the same rank
  /// in each cluster, so that the CTAs of a cluster need not meet again and the last ones share the
  /// work. See epilogue.md for what tickets rely on.
  static __device__ __forceinline__ bool comes_last(const AttentionArgs& args, const CtaRows& rows,
                                                    int parts) {
    __syncthreads();  // all threads have left theirs: the ticket releases them
    bool last = false;
    if (thread() == 0) {
      const uint32_t others = static_cast<uint32_t>(parts) - 1;
      last = take_ticket(args.tickets + group() * kCluster + rank(rows), others) == others;
    }
    return __syncthreads_or(last) != 0;
  }

  /// All parts of a row's four dims, in their order; the 16 lanes of a row together, each of which
  /// weighs every sixteenth part.
  static __device__ __forceinline__ RowPart gathered(const AttentionArgs& args, const CtaRows& rows,
                                                     int row, int chunk, int parts) {
    constexpr int kLanes = kChunksPerRow;
    constexpr int kStep = kParts < kLanes ? kParts : kLanes;  // parts whose loads overlap
    constexpr int kSteps = (kParts + kStep - 1) / kStep;
    const int64_t stride = width(rows) * kChunksPerRow;
    const F32x4* o = part_o(args, rows, 0, row) + chunk;
    const RowStats* stats = part_stats(args, rows, row);
    RowPart all{{}, {kNoMaximum, 0.0F}};
    RowStats mine[kSteps];
    F32x4 step[kStep];
    load_step(step, o, stride, 0, parts);  // under way while the weights are found
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int part = i * kStep + chunk;
      mine[i] = {kNoMaximum, 0.0F};
      if (chunk < kStep && part < parts) mine[i] = stats[part];
      all.stats.max = fmaxf(all.stats.max, mine[i].max);
    }
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      all.stats.max = fmaxf(all.stats.max, __shfl_xor_sync(kWholeWarp, all.stats.max, distance));
    }
    float weight[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      weight[i] = exp2_approx(mine[i].max - all.stats.max);
      all.stats.sum += weight[i] * mine[i].sum;
    }
    all.stats.sum = sum_of_row(all.stats.sum);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i * kStep >= parts) break;  // the whole CTA
      if (i > 0) load_step(step, o, stride, i * kStep, parts);
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        const float w = __shfl_sync(kWholeWarp, weight[i], j, kLanes);
#pragma unroll
        for (int d = 0; d < 4; ++d) all.o.value[d] += w * step[j].value[d];
      }
    }
    return all;
  }

  template <int kStep>
  static __device__ __forceinline__ void load_step(F32x4 (&step)[kStep], const F32x4* o,
                                                   int64_t stride, int first, int parts) {
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      step[j] = {};
      if (first + j < parts) step[j] = o[(first + j) * stride];
    }
  }
};

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::device
