// SPDX-License-Identifier: Apache-2.0
// The row kernels over the vectors of vector.inl. The including header adds what differs between
// instruction sets: Decoder (e4m3 to f32), sum() and maximum() over the lanes, kDimVectors (how
// many accumulators of a row fit the registers beside three other rows).

MUSE_INLINE float reciprocal_rms(const uint16_t* x, int64_t dim) {
  F squares{};
  for (int64_t d = 0; d < dim; d += kLanes) {
    const F value = load_bf16(x + d);
    squares += value * value;
  }
  return 1.0F / __builtin_sqrtf(sum(squares) / static_cast<float>(dim) + 1e-5F);
}

MUSE_TARGET inline void norm_rope_quantise(const uint16_t* x, const float* cos_sin, float scale,
                                           int64_t dim, uint8_t* out) {
  const float r = reciprocal_rms(x, dim);
  // The even one of a pair subtracts its neighbour: y_2j*c - y_2j+1*s, y_2j+1*c + y_2j*s.
  const U even_sign = reinterpret_cast<U>(W{} + 0x80000000U);
  for (int64_t d = 0; d < dim; d += kLanes) {
    F z = round_bf16(load_bf16(x + d) * r);
    if (cos_sin != nullptr) {
      const F c = load_doubled(cos_sin + d / 2);
      const F s = from_bits(bits_of(load_doubled(cos_sin + dim / 2 + d / 2)) ^ even_sign);
      z = round_bf16(z * c + swap_pairs(z) * s);
    }
    store_e4m3(out + d, round_bf16(z / scale));  // scale 1 changes nothing
  }
}

MUSE_TARGET inline void quantise(const uint16_t* x, float scale, int64_t dim, uint8_t* out) {
  for (int64_t d = 0; d < dim; d += kLanes) {
    store_e4m3(out + d, round_bf16(load_bf16(x + d) / scale));
  }
}

MUSE_INLINE void prefetch_row(const uint8_t* row, int64_t dim) {
  constexpr int64_t kLine = 64;
  for (int64_t byte = 0; byte < dim; byte += kLine) __builtin_prefetch(row + byte);
}

MUSE_TARGET inline void decode_rows(const uint8_t* base, const int64_t* offsets,
                                    const int64_t* ahead, int64_t rows, int64_t dim, float* out) {
  const Decoder decoder;
  for (int64_t row = 0; row < rows; ++row) {
    prefetch_row(base + ahead[row], dim);
    const uint8_t* codes = base + offsets[row];
    for (int64_t d = 0; d < dim; d += kLanes) store(out + row * dim + d, decoder.load(codes + d));
  }
}

MUSE_TARGET inline void decode_keys(const uint8_t* base, const int64_t* offsets,
                                    const int64_t* ahead, int64_t keys_padded, int64_t dim,
                                    float* out) {
  const Decoder decoder;
  for (int64_t key = 0; key < keys_padded; key += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) prefetch_row(base + ahead[key + lane], dim);
    decoder.load_transposed(base, offsets + key, dim, keys_padded, out + key);
  }
}

/// Rows x 2 vectors of keys: eight sums in flight hide the latency of the multiply-add.
template <int Rows>
MUSE_INLINE void score_block(const float* query, const float* keys, int64_t keys_padded,
                             int64_t dim, float* scores) {
  for (int64_t key = 0; key < keys_padded; key += 2 * kLanes) {
    F dots[Rows][2] = {};
    for (int64_t d = 0; d < dim; ++d) {
      const F k0 = load(keys + d * keys_padded + key);
      const F k1 = load(keys + d * keys_padded + key + kLanes);
      MUSE_UNROLL
      for (int row = 0; row < Rows; ++row) {
        const float q = query[row * dim + d];
        dots[row][0] += k0 * q;
        dots[row][1] += k1 * q;
      }
    }
    MUSE_UNROLL
    for (int row = 0; row < Rows; ++row) {
      store(scores + row * keys_padded + key, dots[row][0]);
      store(scores + row * keys_padded + key + kLanes, dots[row][1]);
    }
  }
}

MUSE_TARGET inline void score_rows(const float* query, int64_t rows, const float* keys,
                                   int64_t keys_padded, int64_t dim, float* scores) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    score_block<4>(query + row * dim, keys, keys_padded, dim, scores + row * keys_padded);
  }
  for (; row < rows; ++row) {
    score_block<1>(query + row * dim, keys, keys_padded, dim, scores + row * keys_padded);
  }
}

MUSE_INLINE I lane_numbers() {
  I lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  return lanes;
}

MUSE_TARGET inline float softmax(float* scores, int64_t begin, int64_t end, int64_t keys_padded,
                                 float scale, SoftmaxState* state) {
  const F minus_infinity = broadcast(-__builtin_inff());
  const I lanes = lane_numbers();
  F highest = broadcast(state->max);
  for (int64_t key = 0; key < keys_padded; key += kLanes) {
    const I number = lanes + static_cast<int32_t>(key);
    const I inside = (number >= static_cast<int32_t>(begin)) & (number < static_cast<int32_t>(end));
    const F score = inside ? load(scores + key) * scale : minus_infinity;
    store(scores + key, score);
    highest = score > highest ? score : highest;
  }
  const float max = maximum(highest);
  F total{};
  for (int64_t key = 0; key < keys_padded; key += kLanes) {
    const F p = exp2_negative(load(scores + key) - max);
    store(scores + key, p);
    total += p;
  }
  const float factor = exp2_negative(broadcast(state->max - max))[0];
  state->max = max;
  state->sum = state->sum * factor + sum(total);
  return factor;
}

/// Rows x kDimVectors accumulators stay in registers over all keys.
template <int Rows>
MUSE_INLINE void accumulate_block(const float* p, int64_t stride, const float* factors,
                                  const float* values, int64_t begin, int64_t end, int64_t dim,
                                  float* acc) {
  for (int64_t d = 0; d < dim; d += kDimVectors * kLanes) {
    F sums[Rows][kDimVectors];
    MUSE_UNROLL
    for (int row = 0; row < Rows; ++row) {
      MUSE_UNROLL
      for (int v = 0; v < kDimVectors; ++v) {
        sums[row][v] = load(acc + row * dim + d + v * kLanes) * factors[row];
      }
    }
    for (int64_t key = begin; key < end; ++key) {
      F value[kDimVectors];
      MUSE_UNROLL
      for (int v = 0; v < kDimVectors; ++v) value[v] = load(values + key * dim + d + v * kLanes);
      MUSE_UNROLL
      for (int row = 0; row < Rows; ++row) {
        MUSE_UNROLL
        for (int v = 0; v < kDimVectors; ++v) sums[row][v] += value[v] * p[row * stride + key];
      }
    }
    MUSE_UNROLL
    for (int row = 0; row < Rows; ++row) {
      MUSE_UNROLL
      for (int v = 0; v < kDimVectors; ++v) {
        store(acc + row * dim + d + v * kLanes, sums[row][v]);
      }
    }
  }
}

MUSE_TARGET inline void accumulate(const float* p, int64_t stride, const float* factors,
                                   int64_t rows, const float* values, int64_t begin, int64_t end,
                                   int64_t dim, float* acc) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    accumulate_block<4>(p + row * stride, stride, factors + row, values, begin, end, dim,
                        acc + row * dim);
  }
  for (; row < rows; ++row) {
    accumulate_block<1>(p + row * stride, stride, factors + row, values, begin, end, dim,
                        acc + row * dim);
  }
}

MUSE_TARGET inline void scale_to_f32(const float* x, float factor, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; d += kLanes) store(out + d, load(x + d) * factor);
}

MUSE_TARGET inline void scale_to_bf16(const float* x, float factor, int64_t dim, uint16_t* out) {
  for (int64_t d = 0; d < dim; d += kLanes) store_bf16(out + d, load(x + d) * factor);
}

MUSE_TARGET inline void add_f32(const float* x, float weight, int64_t dim, float* acc) {
  for (int64_t d = 0; d < dim; d += kLanes) store(acc + d, load(acc + d) + load(x + d) * weight);
}

MUSE_TARGET inline void add_bf16(const uint16_t* x, float weight, int64_t dim, float* acc) {
  for (int64_t d = 0; d < dim; d += kLanes) {
    store(acc + d, load(acc + d) + load_bf16(x + d) * weight);
  }
}

MUSE_TARGET inline void gate(const uint16_t* o, const uint16_t* g, int64_t dim, uint16_t* out) {
  const float r = reciprocal_rms(o, dim);
  for (int64_t d = 0; d < dim; d += kLanes) {
    // By exp(-|g|), which cannot overflow: 1/(1+e) for g >= 0, e/(1+e) below.
    const F gate_value = load_bf16(g + d);
    const F e = exp2_negative(absolute(gate_value) * -1.44269504F);
    const F sigmoid = (gate_value >= 0.0F ? broadcast(1.0F) : e) / (e + 1.0F);
    store_bf16(out + d, load_bf16(o + d) * r * sigmoid);
  }
}

inline constexpr RowKernels kRowKernels{
    .norm_rope_quantise = norm_rope_quantise,
    .quantise = quantise,
    .decode_rows = decode_rows,
    .decode_keys = decode_keys,
    .scores = score_rows,
    .softmax = softmax,
    .accumulate = accumulate,
    .scale_to_f32 = scale_to_f32,
    .scale_to_bf16 = scale_to_bf16,
    .add_f32 = add_f32,
    .add_bf16 = add_bf16,
    .gate = gate,
};

#undef MUSE_UNROLL
#undef MUSE_INLINE
