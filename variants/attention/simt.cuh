// SPDX-License-Identifier: Apache-2.0
// attention/simt: split-KV in f32 without tensor cores. A CTA takes a split of a request for one kv
// head; a warp takes one query row after the other, a lane one key of the tile, then two dims of O.
#pragma once

#include "variants/device/attention_args.h"
#include "variants/device/attention_keys.cuh"
#include "variants/device/partials.cuh"

namespace muse::attention_simt {

struct Args {
  device::AttentionArgs attention;
};

inline constexpr int kTileKeys = 32;  // one for each lane

/// Decoded keys and values. K rows are padded by one: lanes read the same dim of different keys.
struct Tile {
  float k[kTileKeys][device::kHeadDim + 1];
  float v[kTileKeys][device::kHeadDim];
};

/// A query row and its online softmax.
struct Row {
  float query[device::kHeadDim];
  float o[device::kHeadDim];  // sum of P * V
  float max;                  // of the scores so far, in units of log2
  float sum;                  // of P = exp2(score - max)
};

#if defined(MUSE_DEVICE_CODE)

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(device::kWholeWarp, value, distance));
  }
  return value;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(device::kWholeWarp, value, distance);
  }
  return value;
}

/// What one CTA works on.
struct Work {
  int request, kv_head, split;
  int cache_seqlen;
  int rows;  // L*G query rows of the kv head
  device::KeyRange keys;
};

template <class C>
__device__ __forceinline__ void start_rows(const device::AttentionArgs& args, const Work& work,
                                           Row* rows) {
  for (int item = static_cast<int>(threadIdx.x); item < work.rows * device::kHeadDim;
       item += C::warps * 32) {
    const int row = item / device::kHeadDim, dim = item % device::kHeadDim;
    const int64_t head = device::query_row(args, work.request, work.kv_head, row).head;
    rows[row].query[dim] = e4m3_to_f32(args.q8[head * device::kHeadDim + dim]);
    rows[row].o[dim] = 0.0F;
    if (dim == 0) {
      rows[row].max = device::minus_infinity();
      rows[row].sum = 0.0F;
    }
  }
}

/// The tile from key `begin` on. Rows past the split are neither looked up nor read, but zero.
template <class C>
__device__ __forceinline__ void load_tile(const device::AttentionArgs& args, const Work& work,
                                          int begin, Tile& tile) {
  constexpr int kWords = device::kHeadDim / 4;  // of four e4m3
  const int32_t* pages = device::pages_of(args, work.request);
  for (int item = static_cast<int>(threadIdx.x); item < kTileKeys * kWords; item += C::warps * 32) {
    const int in_tile = item / kWords, dim = item % kWords * 4;
    const int key = begin + in_tile;
    uint32_t k = 0, v = 0;
    if (key < work.keys.end) {
      const int64_t at = device::row_offset(args, device::page_of(args, pages, key), key) +
                         work.kv_head * device::kHeadDim + dim;
      k = *reinterpret_cast<const uint32_t*>(args.k_cache + at);
      v = *reinterpret_cast<const uint32_t*>(args.v_cache + at);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile.k[in_tile][dim + i] = e4m3_to_f32(static_cast<uint8_t>(k >> (8 * i)));
      tile.v[in_tile][dim + i] = e4m3_to_f32(static_cast<uint8_t>(v >> (8 * i)));
    }
  }
}

/// One row over one tile; the whole warp. `seen`: the tile's keys that the row attends, counted
/// from its first. The values of others may be NaN, which no weight of 0 would keep out.
__device__ __forceinline__ void attend_row(const Tile& tile, device::KeyRange seen, float scale,
                                           Row& row) {
  if (seen.end <= seen.begin) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool attended = seen.begin <= lane && lane < seen.end;
  float dot = 0.0F;
#pragma unroll 16
  for (int d = 0; d < device::kHeadDim; ++d) dot += row.query[d] * tile.k[lane][d];
  const float score = attended ? dot * scale : device::minus_infinity();
  const float old_max = row.max;
  const float max = fmaxf(old_max, warp_max(score));
  const float p = exp2f(score - max);  // exactly 0 where not attended
  const float factor = exp2f(old_max - max);
  const float sum = row.sum * factor + warp_sum(p);
  float low = row.o[lane] * factor;
  float high = row.o[lane + 32] * factor;
#pragma unroll 8
  for (int key = seen.begin; key < seen.end; ++key) {
    const float weight = __shfl_sync(device::kWholeWarp, p, key);
    low += weight * tile.v[key][lane];
    high += weight * tile.v[key][lane + 32];
  }
  row.o[lane] = low;
  row.o[lane + 32] = high;
  __syncwarp();  // all lanes have read what one now writes
  if (lane == 0) {
    row.max = max;
    row.sum = sum;
  }
  __syncwarp();
}

template <class C>
__device__ __forceinline__ void store_rows(const device::AttentionArgs& args, const Work& work,
                                           const Row* rows) {
  const float v_scale = __ldg(args.v_scale);
  for (int item = static_cast<int>(threadIdx.x); item < work.rows * device::kChunksPerRow;
       item += C::warps * 32) {
    const Row& row = rows[item / device::kChunksPerRow];
    const int chunk = item % device::kChunksPerRow;
    const int64_t head =
        device::query_row(args, work.request, work.kv_head, item / device::kChunksPerRow).head;
    const float factor = device::output_factor(v_scale, row.sum);
    device::F32x4 o;
#pragma unroll
    for (int i = 0; i < 4; ++i) o.value[i] = row.o[chunk * 4 + i] * factor;
    device::store_output<C>(args, work.split, head, chunk, o);
    if (chunk == 0) device::store_log_sum_exp<C>(args, work.split, head, row.max, row.sum);
  }
}

/// grid: splits, kv heads, requests.
template <class C>
__global__ void __launch_bounds__(C::warps * 32) attend(const __grid_constant__ Args block) {
  const device::AttentionArgs& args = block.attention;
  device::wait_for_predecessor();
  device::allow_successor();
  Work work;
  work.split = static_cast<int>(blockIdx.x);
  work.kv_head = static_cast<int>(blockIdx.y);
  work.request = static_cast<int>(blockIdx.z);
  work.cache_seqlen = __ldg(args.cache_seqlens + work.request);
  work.rows = args.q_len * args.group;
  const device::KeyRange all = device::request_keys(args, work.cache_seqlen);
  const device::Splits splits = device::splits_of(all, C::splits, kTileKeys);
  if (work.split >= splits.count) return;
  work.keys = device::split_keys(all, splits, work.split);

  Tile& tile = *reinterpret_cast<Tile*>(device::dynamic_shared());
  Row* rows = reinterpret_cast<Row*>(device::dynamic_shared() + sizeof(Tile));
  start_rows<C>(args, work, rows);
  const float scale = args.softmax_scale * __ldg(args.k_scale) * device::kLog2E;
  for (int begin = work.keys.begin; begin < work.keys.end; begin += kTileKeys) {
    __syncthreads();  // the tile before has been read
    load_tile<C>(args, work, begin, tile);
    __syncthreads();
    for (int row = static_cast<int>(threadIdx.x) / 32; row < work.rows; row += C::warps) {
      const device::KeyRange own = device::intersect(
          work.keys, device::query_keys(args, work.cache_seqlen, row / args.group));
      const device::KeyRange seen =
          device::intersect({0, kTileKeys}, {own.begin - begin, own.end - begin});
      attend_row(tile, seen, scale, rows[row]);
    }
  }
  __syncthreads();
  store_rows<C>(args, work, rows);
  if (work.split == 0 && work.kv_head == 0 && threadIdx.x == 0) {
    device::store_split_count<C>(args, work.request, splits.count);
  }
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::attention_simt
