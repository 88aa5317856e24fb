// SPDX-License-Identifier: Apache-2.0
// The emulator's stand-in for variants/device/ptx.cuh, found before it on the include path: the
// same functions in C++.
#pragma once

#include "tests/simt/f16.h"
#include "tests/simt/machine.h"
#include "variants/device/words.cuh"

namespace muse::device {

inline unsigned char* dynamic_shared() { return simt::dynamic_shared(); }

// Emulated launches run one after the other.
inline void wait_for_predecessor() {}
inline void allow_successor() {}

inline uint16_t f32x2_to_e4m3x2(float low, float high) {
  return static_cast<uint16_t>(f32_to_e4m3(low) | (f32_to_e4m3(high) << 8));
}

inline uint32_t e4m3x2_to_f16x2(uint16_t codes) {
  return simt::pack_f16(e4m3_to_f32(static_cast<uint8_t>(codes)),
                        e4m3_to_f32(static_cast<uint8_t>(codes >> 8)));
}

inline uint32_t upper_e4m3x2_to_f16x2(uint32_t codes) {
  return e4m3x2_to_f16x2(static_cast<uint16_t>(codes >> 16));
}

inline F32x2 f16x2_to_f32x2(uint32_t halves) {
  return {simt::f16_to_f32(halves & 0xFFFFU), simt::f16_to_f32(halves >> 16)};
}

inline uint32_t f32x2_to_bf16x2(float low, float high) {
  return f32_to_bf16(low) | static_cast<uint32_t>(f32_to_bf16(high)) << 16;
}

inline float exp2_approx(float x) { return x < -126.0F ? 0.0F : exp2f(x); }

inline float reciprocal_approx(float x) { return 1.0F / x; }

inline uint32_t f32x2_to_f16x2(float low, float high) { return simt::pack_f16(low, high); }

inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
  uint32_t picked = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned byte = selector >> 4 * i & 7U;
    picked |= static_cast<uint32_t>(bytes >> 8 * byte & 0xFFU) << 8 * i;
  }
  return picked;
}

/// A lane's fragments of a product, by reference.
struct MmaOperand {
  float* acc;
  const uint32_t *a, *b;
};

inline void multiply_m16n8k16_f16(MmaOperand* const* lanes) {
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < simt::kWarp; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    for (unsigned word = 0; word < 4; ++word) {
      const F32x2 pair = f16x2_to_f32x2(lanes[lane]->a[word]);
      float* at = &a[g + 8 * (word % 2)][2 * t + 8 * (word / 2)];
      at[0] = pair.low;
      at[1] = pair.high;
    }
    for (unsigned word = 0; word < 2; ++word) {
      const F32x2 pair = f16x2_to_f32x2(lanes[lane]->b[word]);
      b[2 * t + 8 * word][g] = pair.low;
      b[2 * t + 8 * word + 1][g] = pair.high;
    }
  }
  for (unsigned row = 0; row < 16; ++row) {
    float sums[8] = {};
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    }
    for (unsigned column = 0; column < 8; ++column) {
      const unsigned lane = row % 8 * 4 + column / 2;
      lanes[lane]->acc[row / 8 * 2 + column % 2] += sums[column];
    }
  }
}

inline void mma_m16n8k16_f16(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MmaOperand operand{acc, a, b};
  simt::whole_warp<MmaOperand, multiply_m16n8k16_f16>("mma.m16n8k16", operand);
}

struct TransposeOperand {
  uint32_t given, taken;
};

inline void transpose_m8n8_b16(TransposeOperand* const* lanes) {
  for (unsigned lane = 0; lane < simt::kWarp; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    uint32_t taken = 0;
    for (unsigned i = 0; i < 2; ++i) {  // element (2t + i, g)
      const uint32_t given = lanes[(2 * t + i) * 4 + g / 2]->given;
      taken |= (given >> 16 * (g % 2) & 0xFFFFU) << 16 * i;
    }
    lanes[lane]->taken = taken;
  }
}

inline uint32_t transpose_8x8_b16(uint32_t pair) {
  TransposeOperand operand{pair, 0};
  simt::whole_warp<TransposeOperand, transpose_m8n8_b16>("movmatrix.m8n8", operand);
  return operand.taken;
}

inline Words4 load_shared_words4(const void* shared) { return load_words4(shared); }
inline int thread_anew() { return static_cast<int>(threadIdx.x); }
struct BlockIndex {
  int x, y, z;
};
inline BlockIndex block_anew() {
  return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
}
inline uint32_t load_shared_word(const void* shared) {
  return *static_cast<const uint32_t*>(shared);
}

enum class LoadHint { kDefault, kNoAllocate };
template <LoadHint kHint>
Words4 load_constant_words4(const void* address) {
  return load_words4(address);
}
inline Words2 load_constant_words2(const void* address) {
  return load_words2(address);
}

inline void prefetch_to_l2(const void* address) {
  static_cast<void>(*static_cast<const volatile uint8_t*>(address));  // has to be there
}

inline void copy_async_16(void* shared, const void* global, bool read) {
  simt::start_copy(shared, read ? global : nullptr, 16);
}
inline void copy_async_4(void* shared, const void* global) { simt::start_copy(shared, global, 4); }
inline void commit_copies() { simt::commit_copies(); }
template <int kPending>
void wait_copies() {
  simt::wait_copies(kPending);
}

struct alignas(8) Mailbox {
  uint32_t state[2];
};
inline void arrive_at_cluster() { simt::arrive_at_cluster(); }
inline void wait_for_cluster() { simt::wait_for_cluster(); }
inline void open_mailbox(Mailbox* mailbox, int bytes) { simt::open_mailbox(mailbox, bytes); }
inline void wait_for_mail(Mailbox* mailbox) { simt::wait_for_mail(mailbox); }
inline void send_to_peer(void* shared, int rank, const Words4& words, Mailbox* mailbox) {
  simt::send_to_peer(shared, rank, &words, sizeof words, mailbox);
}
inline void send_to_peer(void* shared, int rank, const Words2& words, Mailbox* mailbox) {
  simt::send_to_peer(shared, rank, &words, sizeof words, mailbox);
}

inline int sum_of_warp(int value) {
  for (int distance = 1; distance < 32; distance *= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  return value;
}

inline uint32_t take_ticket(uint32_t* counter, uint32_t last) {
  uint32_t before = __atomic_load_n(counter, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(counter, &before, before >= last ? 0 : before + 1, false,
                                      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
  return before;
}

}  // namespace muse::device
