// SPDX-License-Identifier: Apache-2.0
// Results of the reference kernel, brought to the host.
#include "tuner/cuda_truth.h"

#include "tuner/cuda_error.h"
#include "variants/reference/device_attention.h"

namespace muse::tuner {
namespace {

/// Doubles on the device.
class Doubles {
 public:
  Doubles(Backend& backend, int64_t count)
      : backend_(backend), count_(count), address_(backend.allocate(bytes())) {}
  ~Doubles() { backend_.release(address_); }
  Doubles(const Doubles&) = delete;
  Doubles& operator=(const Doubles&) = delete;

  double* address() const { return static_cast<double*>(address_); }
  std::vector<double> download() const {
    std::vector<double> values(static_cast<size_t>(count_));
    backend_.download(values.data(), address_, bytes());
    return values;
  }

 private:
  int64_t bytes() const { return count_ * static_cast<int64_t>(sizeof(double)); }

  Backend& backend_;
  int64_t count_;
  void* address_;
};

}  // namespace

Backend::TargetTruth cuda_attention_truth(Backend& backend, cudaStream_t stream,
                                          const Problem& problem, const Buffers& buffers) {
  const int64_t rows = problem.tokens() * problem.num_q_heads;
  const Doubles exact_o(backend, rows * problem.head_dim), exact_lse(backend, rows);
  const Doubles emulated_o(backend, rows * problem.head_dim), emulated_lse(backend, rows);
  const int error = reference::device_attention({.batch = problem.batch,
                                                 .q_len = problem.q_len,
                                                 .num_q_heads = problem.num_q_heads,
                                                 .num_kv_heads = problem.num_kv_heads,
                                                 .head_dim = problem.head_dim,
                                                 .page_size = problem.page_size,
                                                 .max_pages = problem.max_pages(),
                                                 .window = problem.window,
                                                 .softmax_scale = problem.softmax_scale(),
                                                 .q8 = buffers.q8,
                                                 .cache_seqlens = buffers.cache_seqlens,
                                                 .page_table = buffers.page_table,
                                                 .k_scale = buffers.k_scale,
                                                 .v_scale = buffers.v_scale,
                                                 .k_cache = buffers.k_cache,
                                                 .v_cache = buffers.v_cache,
                                                 .exact_o = exact_o.address(),
                                                 .exact_lse = exact_lse.address(),
                                                 .emulated_o = emulated_o.address(),
                                                 .emulated_lse = emulated_lse.address()},
                                                stream);
  check(static_cast<cudaError_t>(error), "the reference of attention");
  backend.synchronize();
  return {.exact = {.o = exact_o.download(), .lse = exact_lse.download()},
          .emulated = {.o = emulated_o.download(), .lse = emulated_lse.download()}};
}

}  // namespace muse::tuner
