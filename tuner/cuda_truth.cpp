// SPDX-License-Identifier: Apache-2.0
// Results of the reference kernel, brought to the host.
#include "tuner/cuda_truth.h"

#include "tuner/cuda_error.h"
#include "tuner/target_memory.h"
#include "variants/reference/device_attention.h"
#include "variants/reference/device_combine.h"

namespace muse::tuner {
namespace {

TargetBlock doubles(Backend& backend, int64_t count) {
  return {backend, count * static_cast<int64_t>(sizeof(double))};
}

double* address(const TargetBlock& block) { return static_cast<double*>(block.address()); }

std::vector<double> download(Backend& backend, const TargetBlock& block) {
  std::vector<double> values(static_cast<size_t>(block.bytes()) / sizeof(double));
  backend.download(values.data(), block.address(), block.bytes());
  return values;
}

}  // namespace

Backend::TargetTruth cuda_attention_truth(Backend& backend, cudaStream_t stream,
                                          const Problem& problem, const Buffers& buffers) {
  const int64_t rows = problem.tokens() * problem.num_q_heads;
  const TargetBlock exact_o = doubles(backend, rows * problem.head_dim),
                    exact_lse = doubles(backend, rows);
  const TargetBlock emulated_o = doubles(backend, rows * problem.head_dim),
                    emulated_lse = doubles(backend, rows);
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
                                                 .exact_o = address(exact_o),
                                                 .exact_lse = address(exact_lse),
                                                 .emulated_o = address(emulated_o),
                                                 .emulated_lse = address(emulated_lse)},
                                                stream);
  check(static_cast<cudaError_t>(error), "the reference of attention");
  backend.synchronize();
  return {.exact = {.o = download(backend, exact_o), .lse = download(backend, exact_lse)},
          .emulated = {.o = download(backend, emulated_o), .lse = download(backend, emulated_lse)}};
}

Backend::CombinedPartials cuda_combined_partials(Backend& backend, cudaStream_t stream,
                                                 const Problem& problem, const Buffers& buffers,
                                                 bool values) {
  const int64_t rows = problem.tokens() * problem.num_q_heads;
  const TargetBlock o = doubles(backend, rows * problem.head_dim), lse = doubles(backend, rows);
  const TargetBlock bad_there(backend, sizeof(reference::BadPartials));
  backend.fill(bad_there.address(), 0xFF, bad_there.bytes());
  const int error =
      reference::device_combine({.batch = problem.batch,
                                 .q_len = problem.q_len,
                                 .num_q_heads = problem.num_q_heads,
                                 .head_dim = problem.head_dim,
                                 .split_capacity = buffers.split_capacity,
                                 .wide = buffers.partial_type == PartialType::kF32,
                                 .partial_o = buffers.partial_o,
                                 .partial_lse = buffers.partial_lse,
                                 .n_splits = buffers.n_splits,
                                 .o = address(o),
                                 .lse = address(lse),
                                 .bad = static_cast<reference::BadPartials*>(bad_there.address())},
                                stream);
  check(static_cast<cudaError_t>(error), "the reference of combine");
  reference::BadPartials bad{};
  backend.download(&bad, bad_there.address(), sizeof bad);
  Backend::CombinedPartials combined{.o = {},
                                     .lse = {},
                                     .bad_n_splits = static_cast<int64_t>(bad.n_splits),
                                     .nan_lse = static_cast<int64_t>(bad.lse),
                                     .inf_lse = static_cast<int64_t>(bad.infinite),
                                     .nan_o = static_cast<int64_t>(bad.o)};
  if (values) combined.o = download(backend, o);
  if (values) combined.lse = download(backend, lse);
  return combined;
}

}  // namespace muse::tuner
