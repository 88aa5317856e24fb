// SPDX-License-Identifier: Apache-2.0
// A table of pipelines compiled ahead of time, as if it had been measured on the GPU at hand; and a
// step's data in that GPU's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/device/aot/pipelines.h"
#include "tuner/dispatch_index.h"
#include "variants/reference/step.h"
#include "variants/runtime/device_class_cuda.h"
#include "variants/runtime/linked_table.h"
#include "variants/runtime/muse_attention.hpp"

namespace muse {

const Variant& variant_prepare_fused();
const Variant& variant_prepare_warp();
const Variant& variant_attention_mma();
const Variant& variant_attention_async_ring();
const Variant& variant_attention_register_direct();
const Variant& variant_combine_gated();
const Variant& variant_fused_one_launch();

namespace aot {

inline void require(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}
inline void require(const Status& status) {
  if (!status) throw std::runtime_error(status.message());
}

inline constexpr int64_t kWindow = 128;

/// Pipeline number i serves batches of 1 << i, whatever the context, with window, RoPE and scales and
/// with none of them; the base all others.
class GpuTable {
 public:
  GpuTable() {
    for (const Chain& chain : pipelines()) keys_.push_back(key(chain));
    for (size_t i = 0; i < keys_.size(); ++i) {
      infos_.push_back({keys_[i].c_str(), 1, &no_candidate_});
      for (const bool rope : {false, true}) {
        dispatch::Row row{};
        row.key = {.batch = int64_t{1} << i,
                   .page_size = 16,
                   .window = rope ? kWindow : 0,
                   .rope = rope,
                   .scaled = rope,
                   .context = 1};
        row.pipeline = static_cast<dispatch::Pipeline>(i);
        row.status = row.shape = row.date = "";
        rows_.push_back(row);
        row.key.context = 0;
        captured_rows_.push_back(row);
      }
    }
    index_ = tuner::index_rows(rows_, true);
    captured_index_ = tuner::index_rows(captured_rows_, false);
    table_ = index_.table();
    captured_ = captured_index_.table();
    if (const auto here = cuda_device_class(0)) here_ = *here;
    device_ = {
        here_.model.c_str(), here_.isa.c_str(),  here_.host,           here_.cc,
        here_.sm_count,      here_.memory_bytes, here_.driver_version, runtime::kCompilerVersion};
    linked.contexts = &table_;
    linked.captured = &captured_;
    linked.rules = &rules_;
    linked.device = &device_;
    linked.pipelines = infos_.data();
    linked.pipeline_count = static_cast<int>(infos_.size());
    linked.generator = "muse-tune 0.1.0";
    linked.kernels = runtime::kKernels;
    linked.kernel_count = runtime::kKernelCount;
    linked.variants = variants_;
    linked.variant_count = static_cast<int>(std::size(variants_));
    linked.target = &runtime::cuda_target;
    linked.compiler_version = runtime::kCompilerVersion;
  }
  /// The process's own: what linked_table() answers where there is such a GPU.
  static const GpuTable& shared() {
    static const GpuTable table;
    return table;
  }
  GpuTable(const GpuTable&) = delete;
  GpuTable& operator=(const GpuTable&) = delete;

  runtime::LinkedTable linked = {};
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  DeviceClass here_;
  std::vector<std::string> keys_;
  std::vector<dispatch::PipelineInfo> infos_;
  std::vector<dispatch::Row> rows_, captured_rows_;
  tuner::DispatchIndex index_, captured_index_;
  dispatch::Table table_, captured_;
  dispatch::Device device_;
  /// Batches exactly, contexts as they come.
  dispatch::Rules rules_ = {{true, 256}, {true, 256}, {false, 1}, dispatch::kDistanceOne};
  int no_candidate_ = 0;
  const Variant& (*variants_[7])() = {variant_prepare_fused,
                                      variant_prepare_warp,
                                      variant_attention_mma,
                                      variant_attention_async_ring,
                                      variant_attention_register_direct,
                                      variant_combine_gated,
                                      variant_fused_one_launch};
};

/// Memory of the GPU.
class Block {
 public:
  Block() = default;
  explicit Block(size_t bytes) { require(cudaMalloc(&address_, bytes)); }
  Block(Block&& other) noexcept : address_(std::exchange(other.address_, nullptr)) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(address_, other.address_);
    return *this;
  }
  ~Block() { cudaFree(address_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(address_);
  }

 private:
  void* address_ = nullptr;
};

/// A stream that waits for no other.
class Stream {
 public:
  Stream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A step's data on the GPU, with room for any shape of the same problem up to its capacity.
class GpuStep {
 public:
  explicit GpuStep(const reference::Step& step) : problem_(step.problem) {
    put(qkv_, step.qkv);
    put(positions_, step.positions);
    put(cache_loc_, step.cache_loc);
    put(seq_lens_, step.seq_lens);
    put(cache_seqlens_, step.cache_seqlens);
    put(cu_seqlens_q_, step.cu_seqlens_q);
    put(page_table_, step.page_table);
    put(scale_, std::vector<float>{step.kv_scale});
    put(cos_sin_, step.cos_sin);
    put(k_cache_, step.k_cache);
    put(v_cache_, step.v_cache);
    out_ = Block(out_elements() * sizeof(uint16_t));
    poison_out();
  }

  /// New data in the same memory: a shorter step of the same problem, its page table widened.
  void replace(const reference::Step& step) {
    const int64_t wide = problem_.max_pages(), narrow = step.problem.max_pages();
    std::vector<int32_t> table(static_cast<size_t>(problem_.batch * wide), -1);
    for (int64_t b = 0; b < problem_.batch; ++b) {
      std::copy_n(step.page_table.begin() + b * narrow, narrow, table.begin() + b * wide);
    }
    over(qkv_, step.qkv);
    over(positions_, step.positions);
    over(cache_loc_, step.cache_loc);
    over(seq_lens_, step.seq_lens);
    over(cache_seqlens_, step.cache_seqlens);
    over(page_table_, table);
    over(k_cache_, step.k_cache);
    over(v_cache_, step.v_cache);
    poison_out();
  }

  muse_attention_buffers buffers() const {
    return {.struct_bytes = sizeof(muse_attention_buffers),
            .qkv = qkv_.as<void>(),
            .positions = positions_.as<int64_t>(),
            .cache_loc = cache_loc_.as<int64_t>(),
            .seq_lens = seq_lens_.as<int32_t>(),
            .cache_seqlens = cache_seqlens_.as<int32_t>(),
            .cu_seqlens_q = cu_seqlens_q_.as<int32_t>(),
            .page_table = page_table_.as<int32_t>(),
            .k_scale = scale_.as<float>(),
            .v_scale = scale_.as<float>(),
            .cos_sin = cos_sin_.as<float>(),
            .k_cache = k_cache_.as<void>(),
            .v_cache = v_cache_.as<void>(),
            .out = out_.as<void>()};
  }
  std::vector<uint16_t> out() const {
    std::vector<uint16_t> host(out_elements());
    require(cudaMemcpy(host.data(), out_.as<void>(), host.size() * sizeof(uint16_t),
                       cudaMemcpyDeviceToHost));
    return host;
  }
  void poison_out() {
    require(cudaMemset(out_.as<void>(), 0xFF, out_elements() * sizeof(uint16_t)));
    require(cudaDeviceSynchronize());
  }
  /// The step's rows of K or V, in the order of its tokens.
  std::vector<uint8_t> rows(const reference::Step& step, bool v) const {
    const auto width = static_cast<size_t>(problem_.num_kv_heads * problem_.head_dim);
    std::vector<uint8_t> host(step.cache_loc.size() * width);
    for (size_t i = 0; i < step.cache_loc.size(); ++i) {
      const uint8_t* row =
          (v ? v_cache_ : k_cache_).as<uint8_t>() + static_cast<size_t>(step.cache_loc[i]) * width;
      require(cudaMemcpy(host.data() + i * width, row, width, cudaMemcpyDeviceToHost));
    }
    return host;
  }

 private:
  template <class T>
  static void over(const Block& block, const std::vector<T>& data) {
    require(
        cudaMemcpy(block.as<void>(), data.data(), data.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  template <class T>
  static void put(Block& block, const std::vector<T>& data) {
    if (data.empty()) return;
    block = Block(data.size() * sizeof(T));
    over(block, data);
  }
  size_t out_elements() const {
    return static_cast<size_t>(problem_.tokens() * problem_.num_q_heads * problem_.head_dim);
  }

  Problem problem_;
  Block qkv_, positions_, cache_loc_, seq_lens_, cache_seqlens_, cu_seqlens_q_, page_table_, scale_,
      cos_sin_, k_cache_, v_cache_, out_;
};

}  // namespace aot
}  // namespace muse
