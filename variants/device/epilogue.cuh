// SPDX-License-Identifier: Apache-2.0
// What happens to the result of an attention CTA once its warps have merged: it is a partial for a
// combine, or O, or goes through the gate; and before that it may be merged with those of other
// CTAs of the request, over shared memory within a cluster and by tickets through memory.
//
// A kernel whose grid is (splits, groups of kv heads, requests), or that says otherwise by a Place
// of its own, has these tunables in C:
//   splits         CTAs of a request and group. Requests with few keys use the first ones only
//   cluster        how many of them form a cluster and merge first; divides splits
//   ticket         splits > cluster: 1 = whoever comes last merges all, 0 = they stay partials
//   gate           1 = out instead of O; needs a merge of all
//   partial_bf16   type of partials
//   warps, heads_per_cta
//
// Order of calls, in all threads:
//   needed(rows)   false: wait_for_predecessor(), return
//   begin(...)     as soon as inputs of the step may be read and the loads that the loop waits for
//                  are on their way; a whole warp together
//   keep(...)      before the loop: what finish() wants of `rows` waits in shared memory. Not where
//                  a Place knows
//   meet()         at the latest before finish(): in the shadow of other waits
//   finish(...)    after wait_for_predecessor(), once the warp has left its rows for the CTA's own
//                  merge. CTAs without keys that are needed skip their loop and come here too
#pragma once

#include "variants/device/attention_keys.cuh"
#include "variants/device/partials.cuh"
#include "variants/device/ptx.cuh"
#include "variants/device/rows.cuh"
#include "variants/numerics.h"

namespace muse::device {

/// Rows that belong to one CTA of a cluster, at most.
MUSE_HOST_DEVICE constexpr int most_slots(int rows, int cluster) {
  return (rows + cluster - 1) / cluster;
}
/// Shared memory for what peers send to a CTA of `rows` query rows.
MUSE_HOST_DEVICE constexpr int inbox_bytes(int rows, int cluster) {
  const int parts = cluster == 1 ? 0 : most_slots(rows, cluster) * cluster;
  return parts * (kHeadDim + 2) * static_cast<int>(sizeof(float));
}
/// All that the epilogue needs, apart from what the CTA uses before: peers may be ahead, and inputs
/// are fetched early. Aligned to 16 bytes. The inbox; gates of the CTA's rows; a mailbox; v_scale;
/// the number of splits; where rows go.
MUSE_HOST_DEVICE constexpr int epilogue_bytes(int rows, int cluster, bool gate) {
  const int slots = most_slots(rows, cluster), head_bytes = slots * 4, others = 16;
  return inbox_bytes(rows, cluster) + (gate ? slots * kHeadDim * 2 : 0) +
         (others + head_bytes + 15) / 16 * 16;
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
__device__ __forceinline__ CtaRows cta_rows(const AttentionArgs& args, int splits,
                                            const BlockIndex& block) {
  CtaRows rows;
  rows.request = block.z;
  rows.first_head = block.y * C::heads_per_cta;
  rows.rows_per_head = args.q_len * args.group;
  // Written so that it is a number where the caller knows the heads.
  const bool whole = args.num_kv_heads % C::heads_per_cta == 0;
  rows.count =
      (whole ? C::heads_per_cta : smaller(C::heads_per_cta, args.num_kv_heads - rows.first_head)) *
      rows.rows_per_head;
  rows.split = block.x;
  rows.splits = splits;
  return rows;
}
template <class C>
__device__ __forceinline__ CtaRows cta_rows(const AttentionArgs& args, int splits) {
  return cta_rows<C>(
      args, splits,
      {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)});
}

/// Which rows a CTA has: here by its place in the grid. Asked anew after the loop: block(), as if
/// it were that; splits(kept), of the request, where keep() has left them; group(), which of all
/// requests' groups of kv heads.
struct PlaceInGrid {
  static __device__ __forceinline__ BlockIndex block() { return block_anew(); }
  static __device__ __forceinline__ int splits(const int* kept) {
    return static_cast<int>(load_shared_word(kept));
  }
  static __device__ __forceinline__ int64_t group(const CtaRows&) {
    return static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  }
};

template <class C, class Place = PlaceInGrid>
class Epilogue {
 public:
  static constexpr int kThreads = C::warps * 32;
  static constexpr int kCluster = C::cluster;
  static constexpr int kParts = C::splits / C::cluster;
  static constexpr bool kFinal = kParts == 1 || C::ticket != 0;
  static_assert(C::splits % C::cluster == 0, "clusters are whole");
  static_assert(C::gate == 0 || kFinal, "the gate takes O");

  /// Whether the CTA has keys or stands in a cluster with one that has.
  static __device__ __forceinline__ bool needed(const CtaRows& rows) {
    return rows.split / kCluster * kCluster < rows.splits;
  }

  /// Peers learn that the CTA is there. Gates and v_scale start on their way to shared memory: at
  /// the end they would be a miss of all caches. finish() waits for them.
  static __device__ __forceinline__ void begin(const AttentionArgs& args, const CtaRows& rows,
                                               unsigned char* shared) {
    if constexpr (kCluster > 1) {
      constexpr int kRowBytes = kHeadDim * static_cast<int>(sizeof(float)) + sizeof(RowStats);
      if (thread() == 0 && slots(rows) > 0) {
        open_mailbox(mailbox(rows, shared), slots(rows) * kCluster * kRowBytes);
      }
      __syncwarp();
      arrive_at_cluster();
    }
    if (thread() == 0) copy_async_4(v_scale(rows, shared), args.v_scale);
#pragma unroll 1
    for (int i = thread(); i < slots(rows) * kRowLanes; i += kThreads) {
      const int slot = i / kRowLanes, lane = i % kRowLanes;
      const int row = row_of(rows, slot), in_group = row / rows.rows_per_head;
      const int in_head = row - in_group * rows.rows_per_head, query = in_head / args.group;
      const int token = rows.request * args.q_len + query;
      const int head = (rows.first_head + in_group) * args.group + in_head - query * args.group;
      if (lane == 0) heads(rows, shared)[slot] = token * args.num_q_heads + head;
      if constexpr (C::gate != 0) {
        const int before = args.num_q_heads + 2 * args.num_kv_heads;  // heads before the gates
        copy_async_16(
            gates(rows, shared) + slot * kChunksPerRow + lane * 2,
            args.qkv + row_start(token, before + args.num_q_heads, before + head) + lane * kSlice,
            true);
      }
    }
    commit_copies();
  }

  /// Before the loop, which has use for every register: keeps rows.splits for finish().
  static __device__ __forceinline__ void keep(const CtaRows& rows, unsigned char* shared) {
    if (thread() == 0) *splits(rows, shared) = rows.splits;
  }

  /// Waits until the peers of begin() are there.
  static __device__ __forceinline__ void meet() {
    if constexpr (kCluster > 1) wait_for_cluster();
  }

  /// merged(row, chunk) -> RowPart: what this CTA has of dims 4*chunk..4*chunk+3, not normalised;
  /// whole warps call it, 16 lanes to a row; not in a CTA without keys. shared: epilogue_bytes().
  template <class Merged>
  static __device__ __forceinline__ void finish(const AttentionArgs& args, unsigned char* shared,
                                                const Merged& merged) {
    wait_copies<0>();
    __syncthreads();  // rows of all warps are there, and what was fetched
    CtaRows rows = cta_rows<C>(args, 0, Place::block());
    rows.splits = Place::splits(splits(rows, shared));
    if constexpr (kCluster == 1) {
      hand_out(args, rows, shared, merged);
    } else {
      send(rows, shared, merged);
      // Then nobody will write to this CTA again. Warps without rows need not know.
      if (thread() / 32 * 2 < slots(rows)) wait_for_mail(mailbox(rows, shared));
      hand_out(args, rows, shared, [&](int row, int chunk) {
        const int slot = row / kCluster;
        return merge_parts<kCluster>(
            kCluster, chunk, [&](int from) { return *inbox_stats(rows, shared, slot, from); },
            [&](int from) { return *inbox_o(shared, slot, from, chunk); });
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

  static __device__ __forceinline__ int row_of(const CtaRows& rows, int slot) {
    return slot * kCluster + rank(rows);
  }

  /// Behind the inbox: of the CTA's rows their gates, sixteen words to a slot, and their indices
  /// into [T, Hq].
  static __device__ __forceinline__ Words2* gates(const CtaRows& rows, unsigned char* shared) {
    return reinterpret_cast<Words2*>(shared + inbox_bytes(rows.count, kCluster));
  }
  static __device__ __forceinline__ Mailbox* mailbox(const CtaRows& rows, unsigned char* shared) {
    const int words = C::gate == 0 ? 0 : most_slots(rows.count, kCluster) * kChunksPerRow;
    return reinterpret_cast<Mailbox*>(gates(rows, shared) + words);
  }
  static __device__ __forceinline__ float* v_scale(const CtaRows& rows, unsigned char* shared) {
    return reinterpret_cast<float*>(mailbox(rows, shared) + 1);
  }
  static __device__ __forceinline__ int* splits(const CtaRows& rows, unsigned char* shared) {
    return reinterpret_cast<int*>(v_scale(rows, shared) + 1);
  }
  static __device__ __forceinline__ int* heads(const CtaRows& rows, unsigned char* shared) {
    return splits(rows, shared) + 1;
  }

  /// body(i, chunk, exists) for i below `count`, 16 neighbouring lanes to each, whole warps at a
  /// time: lanes that have none go along on another's.
  template <class Body>
  static __device__ __forceinline__ void for_each(int count, const Body& body) {
    const int thread = thread_anew();
#pragma unroll 1
    for (int first = thread / 32 * 2; first < count; first += kThreads / kChunksPerRow) {
      const int i = first + thread % 32 / kChunksPerRow;
      body(smaller(i, count - 1), thread % kChunksPerRow, i < count);
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
    return reinterpret_cast<RowStats*>(inbox_o(inbox, most_slots(rows.count, kCluster), 0, 0)) +
           slot * kCluster + from;
  }

  /// Each row goes to the CTA that it belongs to. A CTA without keys sends rows too: it has nothing
  /// else to do, and whoever adds them up need not tell CTAs apart.
  template <class Merged>
  static __device__ __forceinline__ void send(const CtaRows& rows, unsigned char* inbox,
                                              const Merged& merged) {
    const int self = rank(rows);
    Mailbox* const mail = mailbox(rows, inbox);
    for_each(rows.count, [&](int row, int chunk, bool exists) {
      RowPart part{{}, {kNoMaximum, 0.0F}};
      if (rows.has_keys()) part = merged(row, chunk);
      if (!exists) return;
      const int slot = row / kCluster, to = row % kCluster;
      send_to_peer(inbox_o(inbox, slot, self, chunk), to,
                   Words4{{f32_bits(part.o.value[0]), f32_bits(part.o.value[1]),
                           f32_bits(part.o.value[2]), f32_bits(part.o.value[3])}},
                   mail);
      if (chunk == 0) {
        send_to_peer(inbox_stats(rows, inbox, slot, self), to,
                     Words2{{f32_bits(part.stats.max), f32_bits(part.stats.sum)}}, mail);
      }
    });
  }

  // Out of it. ----------------------------------------------------------------------------------

  /// own(row, chunk) -> RowPart of the rows that belong to this CTA.
  template <class Own>
  static __device__ __forceinline__ void hand_out(const AttentionArgs& args, const CtaRows& rows,
                                                  unsigned char* shared, const Own& own) {
    const int part = rows.split / kCluster, parts = ceil_div(rows.splits, kCluster);
    if constexpr (!kFinal) {
      if (rows.split == 0 && rows.first_head == 0 && thread() == 0) {
        store_split_count<Left>(args, rows.request, parts);
      }
    }
    for_each(slots(rows), [&](int slot, int chunk, bool exists) {
      const int row = row_of(rows, slot);
      const RowPart mine = own(row, chunk);
      if (kParts > 1 && kFinal && parts > 1) {
        if (exists) leave_part(args, rows, part, row, chunk, mine);
      } else {
        store(args, rows, shared, part, slot, chunk, mine, exists);
      }
    });
    if constexpr (kParts > 1 && kFinal) {
      if (parts == 1 || slots(rows) == 0 || !comes_last(args, rows, parts)) return;
      for_each(slots(rows), [&](int slot, int chunk, bool exists) {
        const RowPart all = gathered(args, rows, row_of(rows, slot), chunk, parts);
        store(args, rows, shared, 0, slot, chunk, all, exists);
      });
    }
  }

  /// All lanes of a row together. `part`: of a partial, its number.
  static __device__ __forceinline__ void store(const AttentionArgs& args, const CtaRows& rows,
                                               unsigned char* shared, int part, int slot, int chunk,
                                               RowPart row, bool exists) {
    const int head = heads(rows, shared)[slot];
    const float factor = output_factor(*v_scale(rows, shared), row.stats.sum);
#pragma unroll
    for (int j = 0; j < 4; ++j) row.o.value[j] *= factor;
    if constexpr (C::gate != 0) {
      const Words2 gate = gates(rows, shared)[slot * kChunksPerRow + chunk];
      store_gated(args.out, args.o_tap, head, gate, chunk, row.o, exists);
    } else if (exists) {
      store_output<Left>(args, part, head, chunk, row.o);
      if (chunk == 0) {
        store_log_sum_exp<Left>(args, part, head, row.stats.max, row.stats.sum);
      }
    }
  }

  // Through memory. -----------------------------------------------------------------------------

  /// Number of part 0 of a row; its others follow.
  static __device__ __forceinline__ int64_t first_part(const CtaRows& rows, int row) {
    return (Place::group(rows) * (C::heads_per_cta * rows.rows_per_head) + row) * kParts;
  }
  static __device__ __forceinline__ F32x4* part_o(const AttentionArgs& args, int64_t part) {
    return reinterpret_cast<F32x4*>(args.part_o) + part * kChunksPerRow;
  }
  static __device__ __forceinline__ RowStats* part_stats(const AttentionArgs& args, int64_t part) {
    return reinterpret_cast<RowStats*>(args.part_stats) + part;
  }

  static __device__ __forceinline__ void leave_part(const AttentionArgs& args, const CtaRows& rows,
                                                    int part, int row, int chunk,
                                                    const RowPart& mine) {
    const int64_t at = first_part(rows, row) + part;
    part_o(args, at)[chunk] = mine.o;
    if (chunk == 0) *part_stats(args, at) = mine.stats;
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
      last =
          take_ticket(args.tickets + Place::group(rows) * kCluster + rank(rows), others) == others;
    }
    return __syncthreads_or(last) != 0;
  }

  /// All parts of a row's four dims.
  static __device__ __forceinline__ RowPart gathered(const AttentionArgs& args, const CtaRows& rows,
                                                     int row, int chunk, int parts) {
    const int64_t at = first_part(rows, row);
    const F32x4* o = part_o(args, at) + chunk;
    const RowStats* stats = part_stats(args, at);
    return merge_parts<kParts>(
        parts, chunk, [&](int i) { return stats[i]; }, [&](int i) { return o[i * kChunksPerRow]; });
  }
};

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::device
