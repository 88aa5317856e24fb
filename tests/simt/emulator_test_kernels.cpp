// SPDX-License-Identifier: Apache-2.0
// Kernels for tests of the emulator itself, right ones and wrong ones.
#include "tests/simt/emulator_test_kernels.h"

#include "tests/simt/tensor_map.h"
#include "variants/device/ptx.cuh"
#include "variants/device/ptx_phases.cuh"

namespace muse::simt_test {
namespace {

constexpr int kThreads = 96;

/// Each thread passes its number to the one 33 behind it through static shared memory.
__global__ void __launch_bounds__(kThreads) rotate(const __grid_constant__ Args args) {
  __shared__ int numbers[kThreads];
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  args.out[blockIdx.x * kThreads + threadIdx.x] = numbers[(threadIdx.x + 33) % kThreads];
}

/// Reads shared memory, static and dynamic, that nobody has written.
__global__ void read_unwritten(const __grid_constant__ Args args) {
  __shared__ int numbers[kThreads];
  args.out[2 * threadIdx.x] = numbers[threadIdx.x];
  args.out[2 * threadIdx.x + 1] = reinterpret_cast<int*>(device::dynamic_shared())[threadIdx.x];
  __syncthreads();
  numbers[threadIdx.x] = 1;
}

__global__ void shuffle(const __grid_constant__ Args args) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int* out = args.out + threadIdx.x * 8;
  out[0] = __shfl_sync(0xFFFFFFFFU, lane, 5);
  out[1] = __shfl_sync(0xFFFFFFFFU, lane, 9, 8);
  out[2] = __shfl_up_sync(0xFFFFFFFFU, lane, 3, 16);
  out[3] = __shfl_down_sync(0xFFFFFFFFU, lane, 3, 16);
  out[4] = __shfl_xor_sync(0xFFFFFFFFU, lane, 24);
  out[5] = static_cast<int>(__ballot_sync(0xFFFFFFFFU, lane % 3 == 0));
  out[6] = __any_sync(0xFFFFFFFFU, lane == 31) + 2 * __any_sync(0xFFFFFFFFU, lane == 32);
  out[7] = __all_sync(0xFFFFFFFFU, lane < 32) + 2 * __all_sync(0xFFFFFFFFU, lane < 31);
}

/// Both halves of a warp shuffle among themselves, one more often than the other.
__global__ void shuffle_in_halves(const __grid_constant__ Args args) {
  const bool upper = threadIdx.x % 32 >= 16;
  int value = static_cast<int>(threadIdx.x);
  for (int i = 0; i < (upper ? 3 : 1); ++i) {
    value += __shfl_xor_sync(upper ? 0xFFFF0000U : 0x0000FFFFU, value, 1);
  }
  args.out[threadIdx.x] = value;
}

__global__ void ends_early(const __grid_constant__ Args args) {
  if (threadIdx.x % 2 == 1) return;
  __syncthreads();
  args.out[threadIdx.x] = static_cast<int>(__ballot_sync(0xFFFFFFFFU, 1));
}

__global__ void parts_at_barrier(const __grid_constant__ Args) {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__global__ void lacks_itself(const __grid_constant__ Args) { __syncwarp(1U << 7); }

__global__ void mma_in_half_a_warp(const __grid_constant__ Args) {
  if (threadIdx.x >= 16) return;
  float acc[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  device::mma_m16n8k16_f16(acc, a, b);
}

/// a[i][k] = i - k, b[k][j] = k + 2j, started from acc = 1.
__global__ void multiply(const __grid_constant__ Args args) {
  const int g = static_cast<int>(threadIdx.x) / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  uint32_t a[4], b[2];
  for (int w = 0; w < 4; ++w) {
    const int row = g + 8 * (w % 2), k = 2 * t + 8 * (w / 2);
    a[w] = device::f32x2_to_f16x2(static_cast<float>(row - k), static_cast<float>(row - k - 1));
  }
  for (int w = 0; w < 2; ++w) {
    const int k = 2 * t + 8 * w;
    b[w] = device::f32x2_to_f16x2(static_cast<float>(k + 2 * g), static_cast<float>(k + 1 + 2 * g));
  }
  float acc[4] = {1, 1, 1, 1};
  device::mma_m16n8k16_f16(acc, a, b);
  for (int i = 0; i < 4; ++i) {
    args.out[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = static_cast<int>(acc[i]);
  }
}

/// Element (row, column) is 8 * row + column.
__global__ void transpose(const __grid_constant__ Args args) {
  const uint32_t first = threadIdx.x * 2;
  const uint32_t pair = device::transpose_8x8_b16(first | (first + 1) << 16);
  args.out[threadIdx.x * 2] = static_cast<int>(pair & 0xFFFFU);
  args.out[threadIdx.x * 2 + 1] = static_cast<int>(pair >> 16);
}

/// Forgets to wait for the newer of two copies, where args.number is 1.
__global__ void copy(const __grid_constant__ Args args) {
  auto* shared = reinterpret_cast<int*>(device::dynamic_shared());
  device::copy_async_16(shared, args.in, true);
  device::commit_copies();
  device::copy_async_16(shared + 4, args.in + 4, args.number != 2);
  device::commit_copies();
  if (args.number == 1) {
    device::wait_copies<1>();
  } else {
    device::wait_copies<0>();
  }
  for (int i = 0; i < 8; ++i) args.out[blockIdx.x * 8 + i] = shared[i];
}

__global__ void write_shared(const __grid_constant__ Args args) {
  device::dynamic_shared()[args.number] = 1;
}

__global__ void misaligned(const __grid_constant__ Args args) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(args.in);
  args.out[0] = *reinterpret_cast<const int*>(bytes + args.number);
}

__global__ void dereference_null(const __grid_constant__ Args args) {
  const int* volatile nowhere = nullptr;
  args.out[0] = nowhere[args.number];
}

__device__ int rank_of(unsigned cluster) { return static_cast<int>(blockIdx.x % cluster); }
__device__ device::Words2 two(int value) {
  return {{static_cast<unsigned>(value), static_cast<unsigned>(-value)}};
}

/// In clusters of four: each thread passes its number in the grid to the same thread of the next
/// block. Left out: 1 the barrier before, 2 the wait for the mail. 3: one thread more than expected
/// sends; 4: one less. 5: the mailbox is not opened.
__global__ void pass_on(const __grid_constant__ Args args) {
  __shared__ int own[32];
  auto* const mailbox = reinterpret_cast<device::Mailbox*>(device::dynamic_shared() + 256);
  auto* inbox = reinterpret_cast<int*>(device::dynamic_shared()) + 2 * threadIdx.x;
  const int number = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int more = args.number == 3 ? -8 : args.number == 4 ? 8 : 0;
  own[threadIdx.x] = number;
  if (threadIdx.x == 0 && args.number != 5) device::open_mailbox(mailbox, 32 * 8 + more);
  __syncthreads();
  if (args.number != 1) {
    device::arrive_at_cluster();
    device::wait_for_cluster();
  }
  device::send_to_peer(inbox, (rank_of(4) + 1) % 4, two(number), mailbox);
  if (args.number != 2) device::wait_for_mail(mailbox);
  args.out[number] = own[threadIdx.x] - inbox[0] + 1000 * (inbox[0] + inbox[1]);
}

/// Warp 0 passes ints, one to a lane, through a slot to warp 1, four times. 1: the slot is filled
/// again without a wait; 2: nobody makes the barriers; 3: the reader arrives once too often; 4: it
/// goes without the last ones; 5: it waits for copies that never come.
__global__ void through_ring(const __grid_constant__ Args args) {
  constexpr int kRounds = 4;
  auto* const slot = reinterpret_cast<int*>(device::dynamic_shared());
  auto* const full = reinterpret_cast<device::PhaseBarrier*>(slot + 32);
  auto* const empty = full + 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0 && args.number != 2) {
    device::init_barrier(full, 32);
    device::init_barrier(empty, 1);
    device::publish_barriers();
  }
  __syncthreads();
  const bool writes = threadIdx.x < 32;
  int sum = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (writes) {
      if (args.number != 1) device::wait_at(empty, 1 - round % 2);
      device::copy_async_4(slot + lane, args.in + (lane + round) % 8);
      if (args.number != 5 || round < kRounds - 1) device::arrive_with_copies(full);
    } else if (args.number != 4 || round < kRounds - 1) {
      device::wait_at(full, round % 2);
      sum = 10 * sum + slot[lane];
      __syncwarp();
      if (lane <= (args.number == 3 ? 1 : 0)) device::arrive_at(empty);
    }
  }
  if (!writes) args.out[blockIdx.x * 32 + lane] = sum;
}

/// A box of 2 x 2 rows of 64 bytes, two of which lie outside the tensor. 1: a map that nobody has
/// encoded; 2: a target that is not aligned; 3: one arrival too many.
__global__ void copy_box(const __grid_constant__ Args args) {
  simt::TensorMap map{};
  map.base = reinterpret_cast<const unsigned char*>(args.in);
  for (int i = 0; i < 4; ++i) {
    map.extent[i] = i == 0 ? 64 : i == 1 ? 3 : 2;
    map.stride[i] = i == 0 ? 1 : i == 1 ? 64 : 192;
    map.box[i] = i == 0 ? 64 : i == 3 ? 1 : 2;
  }
  map.swizzle_bytes = 64;
  map.valid = args.number == 1 ? 0 : simt::kTensorMap;
  device::TensorMap encoded;
  std::memcpy(encoded.encoded, &map, sizeof map);
  auto* const barrier = reinterpret_cast<device::PhaseBarrier*>(device::dynamic_shared() + 1024);
  device::init_barrier(barrier, 1);
  device::arrive_expecting(barrier, 256);
  if (args.number == 3) device::arrive_at(barrier);
  device::copy_box_async(device::dynamic_shared() + (args.number == 2 ? 128 : 0), encoded, 0, 2, 0,
                         1, barrier);
  device::wait_at(barrier, 0);
  for (int i = 0; i < 64; ++i) {
    args.out[i] = reinterpret_cast<const int*>(device::dynamic_shared())[i];
  }
}

/// Every other block of a pair ends at once; its peer writes to it all the same.
__global__ void store_to_the_ended(const __grid_constant__ Args) {
  auto* const mailbox = reinterpret_cast<device::Mailbox*>(device::dynamic_shared() + 8);
  if (threadIdx.x == 0) device::open_mailbox(mailbox, 8);
  device::arrive_at_cluster();
  if (rank_of(2) == 1) return;
  device::wait_for_cluster();
  device::send_to_peer(device::dynamic_shared(), 1, two(1), mailbox);
}

/// The second block of a pair: 0 arrives twice, 1 waits without having arrived, 2 stands at a
/// barrier of its own that one of its threads never comes to, which waits for the cluster.
__global__ void misuse_cluster(const __grid_constant__ Args args) {
  if (rank_of(2) == 1 && args.number == 2 && threadIdx.x > 0) __syncthreads();
  if (rank_of(2) == 0 || args.number != 1) device::arrive_at_cluster();
  if (rank_of(2) == 1 && args.number == 0) device::arrive_at_cluster();
  device::wait_for_cluster();
}

/// out[1]: who has come last; out[0] counts.
__global__ void come_last(const __grid_constant__ Args args) {
  const unsigned last = gridDim.x - 1;
  if (device::take_ticket(reinterpret_cast<uint32_t*>(args.out), last) == last) {
    args.out[1] = static_cast<int>(blockIdx.x);
  }
}

__global__ void count(const __grid_constant__ Args args) { atomicAdd(args.out, args.number); }

}  // namespace

#define MUSE_TEST_KERNEL(name) \
  simt::Kernel name##_kernel() { return simt::KernelOf<&name>::kernel(); }
MUSE_TEST_KERNEL(rotate)
MUSE_TEST_KERNEL(read_unwritten)
MUSE_TEST_KERNEL(shuffle)
MUSE_TEST_KERNEL(shuffle_in_halves)
MUSE_TEST_KERNEL(ends_early)
MUSE_TEST_KERNEL(parts_at_barrier)
MUSE_TEST_KERNEL(lacks_itself)
MUSE_TEST_KERNEL(mma_in_half_a_warp)
MUSE_TEST_KERNEL(multiply)
MUSE_TEST_KERNEL(transpose)
MUSE_TEST_KERNEL(copy)
MUSE_TEST_KERNEL(write_shared)
MUSE_TEST_KERNEL(misaligned)
MUSE_TEST_KERNEL(dereference_null)
MUSE_TEST_KERNEL(pass_on)
MUSE_TEST_KERNEL(store_to_the_ended)
MUSE_TEST_KERNEL(misuse_cluster)
MUSE_TEST_KERNEL(through_ring)
MUSE_TEST_KERNEL(copy_box)
MUSE_TEST_KERNEL(come_last)
MUSE_TEST_KERNEL(count)

}  // namespace muse::simt_test
