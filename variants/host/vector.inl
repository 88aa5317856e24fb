// SPDX-License-Identifier: Apache-2.0
// Vectors of MUSE_VECTOR_BYTES and what is the same on them for every instruction set. Included
// once for each, inside its namespace, with MUSE_TARGET as its target attribute: functions compiled
// for different instruction sets must never share a name.

#define MUSE_INLINE inline __attribute__((always_inline)) MUSE_TARGET
#if defined(__clang__)
#define MUSE_UNROLL _Pragma("unroll")
#else
#define MUSE_UNROLL _Pragma("GCC unroll 16")
#endif

typedef float F __attribute__((vector_size(MUSE_VECTOR_BYTES)));
typedef int32_t I __attribute__((vector_size(MUSE_VECTOR_BYTES)));
typedef uint32_t U __attribute__((vector_size(MUSE_VECTOR_BYTES)));
typedef uint64_t W __attribute__((vector_size(MUSE_VECTOR_BYTES)));
typedef uint32_t HalfU __attribute__((vector_size(MUSE_VECTOR_BYTES / 2)));
typedef uint16_t Words __attribute__((vector_size(MUSE_VECTOR_BYTES / 2)));
typedef uint8_t Bytes __attribute__((vector_size(MUSE_VECTOR_BYTES / 4)));

constexpr int64_t kLanes = MUSE_VECTOR_BYTES / 4;

template <class V, class T>
MUSE_INLINE V load_as(const T* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class V, class T>
MUSE_INLINE void store_as(T* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

MUSE_INLINE F load(const float* x) { return load_as<F>(x); }
MUSE_INLINE void store(float* x, F value) { store_as(x, value); }
MUSE_INLINE F broadcast(float value) { return value - F{}; }
MUSE_INLINE U bits_of(F value) { return reinterpret_cast<U>(value); }
MUSE_INLINE F from_bits(U bits) { return reinterpret_cast<F>(bits); }
MUSE_INLINE F absolute(F value) { return from_bits(bits_of(value) & 0x7FFFFFFFU); }

MUSE_INLINE F load_bf16(const uint16_t* x) {
  return from_bits(__builtin_convertvector(load_as<Words>(x), U) << 16);
}

/// f32_to_bf16 of numerics.h, lane by lane, as the low halves.
MUSE_INLINE U to_bf16(F value) {
  const U bits = bits_of(value);
  const U rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const U quiet_nan = (bits >> 16) | 0x40U;
  return value == value ? rounded : quiet_nan;
}

MUSE_INLINE F round_bf16(F value) { return from_bits(to_bf16(value) << 16); }

MUSE_INLINE void store_bf16(uint16_t* x, F value) {
  store_as(x, __builtin_convertvector(to_bf16(value), Words));
}

/// f32_to_e4m3 of numerics.h, lane by lane.
MUSE_INLINE void store_e4m3(uint8_t* x, F value) {
  const U bits = bits_of(value);
  const U magnitude = bits & 0x7FFFFFFFU;
  const U normal = ((magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
  const U subnormal = bits_of(from_bits(magnitude) + 16384.0F) - (141U << 23);
  U code = magnitude < (121U << 23) ? subnormal : normal;
  code = magnitude > 0x43E00000U ? U{} + 0x7EU : code;
  code = magnitude > 0x7F800000U ? U{} + 0x7FU : code;
  store_as(x, __builtin_convertvector(code | ((bits >> 24) & 0x80U), Bytes));
}

/// 2^x for x <= 0 (-infinity gives exactly 0, NaN stays NaN), within 2e-7 of the value; results
/// below the smallest normal number round once more. Powers of two enter in two steps, as one could
/// not reach subnormal results.
MUSE_INLINE F exp2_negative(F x) {
  const F magic = broadcast(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  x = x < -151.0F ? broadcast(-151.0F) : x;
  const F shifted = x + magic;
  const F f = x - (shifted - magic);
  const I n = reinterpret_cast<I>(shifted) - reinterpret_cast<I>(magic);
  const I half = n >> 1;
  F p = f * 1.5403530e-4F + 1.3333558e-3F;  // ln(2)^k / k! downwards
  p = p * f + 9.6181291e-3F;
  p = p * f + 5.5504109e-2F;
  p = p * f + 2.4022651e-1F;
  p = p * f + 6.9314718e-1F;
  p = p * f + 1.0F;
  return p * from_bits(reinterpret_cast<U>(half + 127) << 23) *
         from_bits(reinterpret_cast<U>(n - half + 127) << 23);
}

/// Neighbours (2j, 2j+1) exchanged.
MUSE_INLINE F swap_pairs(F value) {
  const W pairs = reinterpret_cast<W>(value);
  return reinterpret_cast<F>((pairs >> 32) | (pairs << 32));
}

/// kLanes / 2 values, each twice.
MUSE_INLINE F load_doubled(const float* x) {
  const W wide = __builtin_convertvector(load_as<HalfU>(x), W);
  return reinterpret_cast<F>(wide | (wide << 32));
}
