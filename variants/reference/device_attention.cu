// SPDX-License-Identifier: Apache-2.0
// Reference of attention on a GPU: one block for each (request, head, query), every score computed
// twice rather than kept. Plain on purpose: what it must agree with is attention.cpp, line by line.
#include <cuda_runtime.h>

#include "variants/numerics.h"
#include "variants/reference/device_attention.h"

namespace muse::reference {
namespace {

constexpr int kDim = 64;
constexpr int kTile = 128;  // keys per tile of the emulation, from the first attended key on
constexpr int kTiles = 4;   // at a time, each summed by kDim threads
constexpr int kThreads = kDim * kTiles;
constexpr int kChunk = kTile * kTiles;
// As in the host's emulation: P is scaled by 2^8, so that 448 is used and not 1.
constexpr float kPShift = 8;
constexpr float kLog2eF32 = 1.4426950408889634F;
constexpr double kLog2e = 1.4426950408889634;
constexpr double kMasked = -__builtin_huge_val();

struct Score {
  double exact;
  float emulated;
};

/// One query: its decoded row, the keys it attends to, and where they lie.
struct Query {
  const int32_t* pages;  // [max_pages]
  int page_size;
  int64_t stride;
  const uint8_t* k;  // rows of this kv head, `stride` bytes apart
  const uint8_t* v;
  int low, high;  // attended keys
  double c_exact;
  float c_emulated;

  __device__ int64_t offset(int key) const {
    return (int64_t{pages[key / page_size]} * page_size + key % page_size) * stride;
  }
};

struct Shared {
  float q[kDim];
  double q_exact[kDim];
  int64_t row[kChunk];  // byte offsets
  double weight[kChunk];
  float p[kChunk], p_rounded[kChunk];
  float tile[kTiles][kDim], tile_sum[kTiles];
  double reduced[kThreads];
};

__device__ Query query_of(const DeviceAttention& a, int64_t request, int64_t head, int64_t i) {
  const int64_t kv_head = head / (a.num_q_heads / a.num_kv_heads);
  const int own = a.cache_seqlens[request] - static_cast<int>(a.q_len - i);
  const int edge = own - static_cast<int>(a.window - 1);
  return {a.page_table + request * a.max_pages,
          static_cast<int>(a.page_size),
          a.num_kv_heads * kDim,
          a.k_cache + kv_head * kDim,
          a.v_cache + kv_head * kDim,
          a.window > 0 && edge > 0 ? edge : 0,
          own + 1,
          static_cast<double>(a.softmax_scale) * static_cast<double>(*a.k_scale),
          a.softmax_scale * *a.k_scale};
}

/// The emulation's eight sums side by side, as the host adds them; the exact sum is so in any
/// order. No product may melt into a later sum, hence the intrinsics.
__device__ Score score(const Query& query, const Shared& shared, int64_t offset) {
  const auto* row = reinterpret_cast<const uint4*>(query.k + offset);
  float sums[8] = {};
  double exact = 0;
  for (int part = 0; part < kDim / 16; ++part) {
    const uint4 codes = row[part];
    const unsigned int words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float k = e4m3_to_f32(static_cast<unsigned char>(words[j / 4] >> (8 * (j % 4))));
      const int d = part * 16 + j;
      sums[j % 8] = __fadd_rn(sums[j % 8], __fmul_rn(shared.q[d], k));
      exact += shared.q_exact[d] * static_cast<double>(k);
    }
  }
  const float low = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
  const float high = __fadd_rn(__fadd_rn(sums[4], sums[5]), __fadd_rn(sums[6], sums[7]));
  return {__dmul_rn(query.c_exact, exact), __fmul_rn(query.c_emulated, __fadd_rn(low, high))};
}

/// combine(a, b) over all threads; every thread gets the result.
template <class Combine>
__device__ double reduce(Shared& shared, double value, Combine combine) {
  shared.reduced[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      shared.reduced[threadIdx.x] =
          combine(shared.reduced[threadIdx.x], shared.reduced[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const double result = shared.reduced[0];
  __syncthreads();  // before the next reduction writes
  return result;
}

/// What one thread adds up: its own keys' weights, and element d of its tiles.
struct Sums {
  double weight = 0, o = 0;
  float row_sum = 0, total = 0;  // of the emulation, in the first kDim threads
};

/// Weights of the keys from `first` on.
__device__ void weigh(const Query& query, Shared& shared, int first, int count,
                      const Score& largest, Sums& sums) {
  for (int k = threadIdx.x; k < count; k += kThreads) {
    const int64_t offset = query.offset(first + k);
    const Score s = score(query, shared, offset);
    shared.row[k] = offset;
    shared.weight[k] = exp(s.exact - largest.exact);
    sums.weight += shared.weight[k];
    const float exponent = __fmul_rn(s.emulated - largest.emulated, kLog2eF32);
    shared.p[k] = exp2f(__fadd_rn(exponent, kPShift));
    shared.p_rounded[k] = round_to_e4m3(shared.p[k]);
  }
}

/// The weighed values; the emulation's tile by tile, key after key.
__device__ void accumulate(const Query& query, Shared& shared, int count, Sums& sums) {
  const int d = threadIdx.x % kDim, t = threadIdx.x / kDim;
  float tile = 0, tile_sum = 0;
  for (int k = t * kTile; k < min((t + 1) * kTile, count); ++k) {
    const float v = e4m3_to_f32(query.v[shared.row[k] + d]);
    sums.o += shared.weight[k] * static_cast<double>(v);
    tile = __fadd_rn(tile, __fmul_rn(shared.p_rounded[k], v));
    tile_sum = __fadd_rn(tile_sum, shared.p[k]);
  }
  shared.tile[t][d] = tile;
  if (d == 0) shared.tile_sum[t] = tile_sum;
  __syncthreads();  // the tiles are complete, and the weights may be written again
  if (t != 0) return;
  for (int each = 0; each * kTile < count; ++each) {
    sums.total = __fadd_rn(sums.total, shared.tile[each][d]);
    sums.row_sum = __fadd_rn(sums.row_sum, shared.tile_sum[each]);
  }
}

__device__ void write(const DeviceAttention& a, Shared& shared, const Score& largest,
                      const Sums& sums) {
  const int64_t row = blockIdx.x;
  const int d = threadIdx.x;
  const auto add = [](double x, double y) { return x + y; };
  const double weight = reduce(shared, sums.weight, add);
  shared.reduced[threadIdx.x] = sums.o;
  __syncthreads();
  if (d >= kDim) return;
  double o = 0;
  for (int t = 0; t < kTiles; ++t) o += shared.reduced[t * kDim + d];
  const double v_scale = *a.v_scale;
  a.exact_o[row * kDim + d] = o / weight * v_scale;
  a.emulated_o[row * kDim + d] =
      round_to_bf16(__fmul_rn(__fdiv_rn(sums.total, sums.row_sum), *a.v_scale));
  if (d != 0) return;
  a.exact_lse[row] = largest.exact * kLog2e + log2(weight);
  a.emulated_lse[row] = largest.emulated * kLog2e + log2f(sums.row_sum) - kPShift;
}

__device__ void write_masked(const DeviceAttention& a) {
  const int64_t row = blockIdx.x;
  const int d = threadIdx.x;
  if (d < kDim) a.exact_o[row * kDim + d] = a.emulated_o[row * kDim + d] = 0;
  if (d == 0) a.exact_lse[row] = a.emulated_lse[row] = kMasked;
}

__global__ void __launch_bounds__(kThreads) attend(const __grid_constant__ DeviceAttention a) {
  __shared__ Shared shared;
  const int64_t row = blockIdx.x;
  const int64_t i = row % a.q_len, head = row / a.q_len % a.num_q_heads;
  const int64_t request = row / a.q_len / a.num_q_heads;
  const Query query = query_of(a, request, head, i);
  if (query.low >= query.high) return write_masked(a);
  if (threadIdx.x < kDim) {
    const int64_t token = request * a.q_len + i;
    const uint8_t code = a.q8[(token * a.num_q_heads + head) * kDim + threadIdx.x];
    shared.q[threadIdx.x] = e4m3_to_f32(code);
    shared.q_exact[threadIdx.x] = static_cast<double>(e4m3_to_f32(code));
  }
  __syncthreads();

  double exact = kMasked, emulated = kMasked;
  for (int key = query.low + static_cast<int>(threadIdx.x); key < query.high; key += kThreads) {
    const Score s = score(query, shared, query.offset(key));
    exact = fmax(exact, s.exact);
    emulated = fmax(emulated, static_cast<double>(s.emulated));
  }
  const auto larger = [](double x, double y) { return fmax(x, y); };
  exact = reduce(shared, exact, larger);
  const Score largest{exact, static_cast<float>(reduce(shared, emulated, larger))};

  Sums sums;
  for (int first = query.low; first < query.high; first += kChunk) {
    const int count = static_cast<int>(
        min(static_cast<long long>(kChunk), static_cast<long long>(query.high - first)));
    weigh(query, shared, first, count, largest, sums);
    __syncthreads();
    accumulate(query, shared, count, sums);
  }
  write(a, shared, largest, sums);
}

}  // namespace

int device_attention(const DeviceAttention& problem, CUstream_st* stream) {
  const int64_t rows = problem.batch * problem.num_q_heads * problem.q_len;
  if (problem.head_dim != kDim || rows <= 0 || rows > 0x7FFFFFFF) return cudaErrorInvalidValue;
  attend<<<static_cast<unsigned int>(rows), kThreads, 0, stream>>>(problem);
  return cudaGetLastError();
}

}  // namespace muse::reference
