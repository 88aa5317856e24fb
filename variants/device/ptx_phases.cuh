// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that count arrivals and landed bytes, and the copies that they count:
// the inline PTX of kernels whose warps have roles, as ptx.cuh has that of all others.
#pragma once

#include "variants/device/ptx.cuh"
#include "variants/device/tensor_map.h"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// Whether the architecture has what this file is about; kernels that use it are refused elsewhere,
/// where it does nothing.
#if __CUDA_ARCH__ >= 900
inline constexpr bool kHasPhaseBarriers = true;
#else
inline constexpr bool kHasPhaseBarriers = false;
#endif

/// In shared memory: threads of the CTA wait here until so many have arrived and so many bytes of
/// asynchronous copies have landed; again and again, its phases counted from 0.
struct alignas(8) PhaseBarrier {
  uint32_t state[2];
};

/// By one thread; then publish_barriers(), then a barrier of the CTA before the others use it.
__device__ __forceinline__ void init_barrier(PhaseBarrier* barrier, int arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier))),
               "r"(arrivals)
               : "memory");
#endif
}
__device__ __forceinline__ void publish_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/// This thread has arrived; what it did before is seen by whoever waits for this phase.
__device__ __forceinline__ void arrive_at(PhaseBarrier* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
#endif
}
/// The same, and the phase lasts until so many bytes more have landed.
__device__ __forceinline__ void arrive_expecting(PhaseBarrier* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier))),
               "r"(bytes)
               : "memory");
#endif
}
/// This thread arrives by itself once all that it has started by copy_async_*() is there.
__device__ __forceinline__ void arrive_with_copies(PhaseBarrier* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
#endif
}
/// Returns once the phase of this parity, the current one or the one before, is over.
__device__ __forceinline__ void wait_at(PhaseBarrier* barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred done; again: "
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; "
      "@!done bra again; }" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier))),
      "r"(parity)
      : "memory");
#endif
}

/// Starts copying a box of a tensor of four dimensions, from this corner on, to shared memory,
/// which is aligned to 128 bytes and, with its swizzle, to 1024; `barrier` counts the bytes of the
/// whole box. Elements outside the tensor become zeros.
__device__ __forceinline__ void copy_box_async(void* shared, const TensorMap& map, int x, int y,
                                               int z, int w, PhaseBarrier* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
      : "memory");
#endif
}

/// Registers of a thread from here on, a multiple of 8: all warps of a group of four give or take
/// together, and who takes waits until others have given. Where the architecture has it not, all
/// keep what the launch gave them.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_SPECIFIC__)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_SPECIFIC__)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
