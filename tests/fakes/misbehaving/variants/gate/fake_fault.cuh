// SPDX-License-Identifier: Apache-2.0
// gate/fake_fault: the gate, and then one of the things that go wrong on a GPU.
#pragma once

#include "variants/device/rows.cuh"

namespace muse::gate_fake_fault {

/// The tunable `fault`.
enum Fault : int {
  kNone = 0,
  kIllegalAddress = 1,
  kMisalignedAddress = 2,
  kTrap = 3,
  kAssert = 4,
  kSharedOverrun = 5,
  kSpin = 6,            // bounded: GPUs are shared
  kLate = 7,            // an illegal address, after kGoodLaunches that went well
  kFlood = 8,           // of prints; the result is right
  kTooManyThreads = 9,  // from here on nothing ever runs
  kGridTooHigh = 10,
  kTooMuchShared = 11,
  kOutOfMemory = 12,
};
inline constexpr int kFaults = 13;
inline constexpr int kThreads = 128;
// Two workers die of it, and so it is blamed, before four good rounds can drop it for being slow.
inline constexpr int kGoodLaunches = 2;
inline constexpr int kPrints = 10000;
inline constexpr uint64_t kSpinNs = 20000000000;

struct Args {
  const uint16_t* qkv;  // bf16 [T, (2*Hq+2*Hkv)*D]
  const uint16_t* o;    // bf16 [T, Hq, D]
  uint16_t* out;        // bf16 [T, Hq*D]
  int32_t* launches;    // [1] of this workspace so far; kLate only
  int32_t tokens, num_q_heads, num_kv_heads;
};

#if defined(MUSE_DEVICE_CODE)

__device__ __forceinline__ uint64_t global_time_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__device__ __forceinline__ void touch_page_0() { *reinterpret_cast<volatile int*>(0x10) = 1; }

template <int kFault>
__device__ void misbehave(const Args& args) {
  if constexpr (kFault == kIllegalAddress) touch_page_0();
  if constexpr (kFault == kMisalignedAddress) *reinterpret_cast<volatile int*>(args.out + 1) = 1;
  if constexpr (kFault == kTrap) asm volatile("trap;");
  if constexpr (kFault == kAssert) {
    __assertfail("the gate holds", "fake_fault.cuh", __LINE__, "misbehave", sizeof(char));
  }
  if constexpr (kFault == kSharedOverrun) {
    static_cast<volatile unsigned char*>(device::dynamic_shared())[16 << 20] = 1;
  }
  if constexpr (kFault == kSpin) {
    for (const uint64_t start = global_time_ns(); global_time_ns() - start < kSpinNs;) {
    }
  }
  if constexpr (kFault == kLate) {
    if (atomicAdd(args.launches, 1) >= kGoodLaunches) touch_page_0();
  }
  if constexpr (kFault == kFlood) {
    for (int i = 0; i < kPrints; ++i) printf("line %d of a flood that nobody reads\n", i);
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads) gate(const __grid_constant__ Args args) {
  const int heads = args.num_q_heads;
  const device::RowPlace row = device::row_place<kThreads>(args.tokens, heads);
  const device::Slice gate =
      device::load_gate(args.qkv, heads, args.num_kv_heads, row.token, row.head, row.lane);
  const int64_t at = device::row_start(row.token, heads, row.head) + row.lane * device::kSlice;
  const device::Slice out = device::gated(device::load_bf16(args.o + at), gate);
  if (row.exists) device::store_bf16(args.out + at, out);
  if (blockIdx.x == 0 && threadIdx.x == 0) misbehave<C::fault>(args);
}

#endif  // MUSE_DEVICE_CODE

}  // namespace muse::gate_fake_fault
