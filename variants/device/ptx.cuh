// SPDX-License-Identifier: Apache-2.0
// What kernels need beyond C++, one small function for each instruction; the only file with inline
// PTX. Newer instructions have a slower equal below the architecture that brought them.
#pragma once

#include "variants/device/words.cuh"

#if defined(MUSE_DEVICE_CODE)

namespace muse::device {

/// The launch's dynamic shared memory, aligned to 1024 bytes.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char muse_dynamic_shared[];
  return muse_dynamic_shared;
}

/// threadIdx.x and blockIdx, which the compiler takes for other numbers: what it works out from
/// these it does not keep in registers from before.
__device__ __forceinline__ int thread_anew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
struct BlockIndex {
  int x, y, z;
};
__device__ __forceinline__ BlockIndex block_anew() {
  BlockIndex block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block.x));
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(block.y));
  asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(block.z));
  return block;
}

/// Programmatic dependent launch: returns once the launch before has ended and its writes are
/// visible. Every thread calls it before it reads what that launch wrote and before it writes what
/// that launch may still read. Nothing to wait for below CC 9.0, where launches never overlap.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Programmatic dependent launch: the next launch may start once every CTA has called this or
/// ended; it sees this launch's writes only after its own wait_for_predecessor(). To be called
/// after this launch's wait: the launch before has ended by then, so what the next one reads ahead
/// of its wait is complete unless this launch writes it.
__device__ __forceinline__ void allow_successor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Two E4: to nearest even, beyond 448 (infinities too) +-448. NaN stays NaN, but of which sign is
/// the architecture's affair.
__device__ __forceinline__ uint16_t f32x2_to_e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
#else
  return static_cast<uint16_t>(f32_to_e4m3(low) | (f32_to_e4m3(high) << 8));
#endif
}

/// Exact: f16 holds every e4m3. NaN stays NaN.
__device__ __forceinline__ uint32_t e4m3x2_to_f16x2(uint16_t codes) {
  uint32_t halves;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
#else
  // Exponent and mantissa in f16's place read 2^-8 too small (biases 7 and 15), subnormals too.
  const uint32_t spread = (codes & 0xFFU) | (static_cast<uint32_t>(codes & 0xFF00U) << 8);
  const uint32_t magnitude = spread & 0x007F007FU;
  const uint32_t sign = (spread & 0x00800080U) << 8;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(magnitude << 7), "r"(0x5C005C00U));
  const uint32_t is_nan = ((magnitude + 0x00010001U) & 0x00800080U) >> 7;  // 1 in its half
  halves |= sign | is_nan * 0x7E00U;
#endif
  return halves;
}

/// The upper two of four codes.
__device__ __forceinline__ uint32_t upper_e4m3x2_to_f16x2(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;  // the conversion reads either half of a register: no shift
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high; }"
      : "=r"(halves)
      : "r"(codes));
  return halves;
#else
  return e4m3x2_to_f16x2(static_cast<uint16_t>(codes >> 16));
#endif
}

/// Exact.
__device__ __forceinline__ F32x2 f16x2_to_f32x2(uint32_t halves) {
  F32x2 values;
  asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(values.low), "=f"(values.high)
      : "r"(halves));
  return values;
}

/// To nearest even; overflow gives infinity, NaN stays NaN.
__device__ __forceinline__ uint32_t f32x2_to_bf16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// 2^x to 2 ulp; below 2^-126 zero, 2^-infinity exactly 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// 1 / x to 1 ulp; subnormals count as zero.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// To nearest even; beyond 65504 infinity.
__device__ __forceinline__ uint32_t f32x2_to_f16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Four of the eight bytes of b:a, the lowest first; the selector's hex digits name them: 0..3 in
/// a, 4..7 in b.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t picked;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(a), "r"(b), "r"(selector));
  return picked;
}

/// acc[16, 8] += a[16, 16] * b[16, 8], f16 with f32 sums, spread over the warp. With g = lane / 4
/// and t = lane % 4 a lane holds, two elements to a word, a: (g, 2t..), (g + 8, 2t..), (g, 2t
/// + 8..), (g + 8, 2t + 8..); b: (2t.., g), (2t + 8.., g); acc: (g, 2t), (g, 2t + 1), (g + 8, 2t),
/// (g + 8, 2t + 1).
__device__ __forceinline__ void mma_m16n8k16_f16(float (&acc)[4], const uint32_t (&a)[4],
                                                 const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// The transpose of an 8 x 8 matrix of 16-bit elements, spread over the warp: with g = lane / 4 and
/// t = lane % 4 a lane gives (g, 2t) and (g, 2t + 1) and gets (2t, g) and (2t + 1, g).
__device__ __forceinline__ uint32_t transpose_8x8_b16(uint32_t pair) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

/// How a load treats the caches.
enum class LoadHint {
  kDefault,
  kNoAllocate  // past L1
};

/// 16 bytes that nothing writes while the kernel runs, or no longer. Stays where it is written:
/// loads are to be under way early.
template <LoadHint kHint>
__device__ __forceinline__ Words4 load_constant_words4(const void* address) {
  Words4 w;
  if constexpr (kHint == LoadHint::kNoAllocate) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
                 : "l"(address));
  } else {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
                 : "l"(address));
  }
  return w;
}

/// The same for 8 bytes.
__device__ __forceinline__ Words2 load_constant_words2(const void* address) {
  Words2 w;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
               : "=r"(w.word[0]), "=r"(w.word[1])
               : "l"(address));
  return w;
}

/// Starts to bring the 32 bytes around `address` into L2; nothing waits for them.
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Starts copying 16 bytes from global to shared memory, past L1; both aligned to 16. Where `read`
/// is false nothing is read and zeros are written.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool read) {
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int source_bytes = read ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(global),
               "r"(source_bytes)
               : "memory");
}

/// 4 bytes, through L1.
__device__ __forceinline__ void copy_async_4(void* shared, const void* global) {
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(global) : "memory");
}

/// Closes a group of this thread's copies, which may be empty.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Returns once at most the newest `kPending` groups of this thread are under way. Other threads
/// see what was copied after a barrier.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// 16 bytes of shared memory, read again each time: a plain load may be kept in registers instead.
__device__ __forceinline__ Words4 load_shared_words4(const void* shared) {
  Words4 w;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared)))
               : "memory");
  return w;
}

/// 4 bytes of it.
__device__ __forceinline__ uint32_t load_shared_word(const void* shared) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];"
               : "=r"(word)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared)))
               : "memory");
  return word;
}

/// Clusters, from CC 9.0 on; kernels that use them are refused below. All threads of a cluster that
/// have not ended arrive, then all may pass wait_for_cluster(). A whole warp calls each together.
/// Arriving says that the CTA is there, and its mailbox open, but nothing of what else was written.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// In shared memory: counts what peers store to this CTA, once in its life.
struct alignas(8) Mailbox {
  uint32_t state[2];
};

/// One thread opens it, for so many bytes, before it arrives at the cluster.
__device__ __forceinline__ void open_mailbox(Mailbox* mailbox, int bytes) {
#if __CUDA_ARCH__ >= 900
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(mailbox));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
               : "memory");
#endif
}

/// Returns once all bytes are there, for this thread to read. After a barrier behind the opening.
__device__ __forceinline__ void wait_for_mail(Mailbox* mailbox) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred done; again: "
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0; "
      "@!done bra again; }" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(mailbox)))
      : "memory");
#endif
}

/// Sends to where `shared`, an address in this CTA's shared memory, lies in that of the cluster's
/// CTA number `rank`, whose mailbox counts it. That one must have arrived at the cluster before;
/// as it waits for its mail it has not ended. Nothing waits for the store here.
__device__ __forceinline__ void send_to_peer(void* shared, int rank, const Words4& words,
                                             Mailbox* mailbox) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 peer, mail; mapa.shared::cluster.u32 peer, %0, %2; "
      "mapa.shared::cluster.u32 mail, %1, %2; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [peer], {%3, %4, %5, %6}, "
      "[mail]; }" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(mailbox))), "r"(rank), "r"(words.word[0]),
      "r"(words.word[1]), "r"(words.word[2]), "r"(words.word[3])
      : "memory");
#endif
}
__device__ __forceinline__ void send_to_peer(void* shared, int rank, const Words2& words,
                                             Mailbox* mailbox) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 peer, mail; mapa.shared::cluster.u32 peer, %0, %2; "
      "mapa.shared::cluster.u32 mail, %1, %2; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [peer], {%3, %4}, [mail]; }" ::
          "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(mailbox))), "r"(rank), "r"(words.word[0]),
      "r"(words.word[1])
      : "memory");
#endif
}

/// Over the whole warp; every lane gets the sum.
__device__ __forceinline__ int sum_of_warp(int value) {
  int sum;
  asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(sum) : "r"(value));
  return sum;
}

/// Counts up by one, from `last` back to 0; the count before. Releases what this thread, and those
/// that met it at a barrier before, have written, and acquires what was released by those who
/// counted before.
__device__ __forceinline__ uint32_t take_ticket(uint32_t* counter, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(last)
               : "memory");
  return before;
}

}  // namespace muse::device

#endif  // MUSE_DEVICE_CODE
