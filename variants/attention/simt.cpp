// SPDX-License-Identifier: Apache-2.0
// attention/simt: split-KV on CUDA in f32, the readable one.
#include "variants/attention/simt.cuh"

#include "variants/contract.h"
#include "variants/device/attention_contract.h"
#include "variants/registry.h"

namespace muse::attention_simt {
namespace {

int64_t shared_bytes(const Problem& problem) {
  const int64_t rows = problem.q_len * problem.group();
  return static_cast<int64_t>(sizeof(Tile)) + rows * static_cast<int64_t>(sizeof(Row));
}

Geometry geometry(const Problem& problem, const Configuration& configuration, const DeviceClass&) {
  Launch launch;
  launch.entry = "attend";
  launch.grid = {
      .x = value(configuration, "splits"), .y = problem.num_kv_heads, .z = problem.batch};
  launch.block = {.x = value(configuration, "warps") * 32};
  launch.smem_bytes = shared_bytes(problem);
  launch.pdl = true;
  return {.launches = {launch}, .workspace = {}};
}

Variant make_variant() {
  Variant variant;
  variant.name = "attention/simt";
  device::set_attention_contract(variant);
  variant.tunables = {{.name = "splits", .values = {1, 4, 16, 64}, .default_value = 16},
                      {.name = "warps", .values = {4, 8}, .default_value = 4},
                      {.name = "partial_bf16", .values = {0}, .default_value = 0}};
  variant.declared = {.batch_invariant = true};
  variant.entries = {"attend"};
  variant.supports = [](const Problem& problem, const Configuration&, const DeviceClass& device) {
    const Support support = device::check_attention(problem, device);
    return support.ok() ? device::check_shared_memory(shared_bytes(problem), device) : support;
  };
  variant.geometry = geometry;
  variant.bind = [](const Problem& problem, const Configuration&, const Buffers& buffers, void*,
                    const TensorMapEncoder&, int) {
    return Arguments::of(Args{.attention = device::attention_args(problem, buffers)});
  };
  return variant;
}

}  // namespace
}  // namespace muse::attention_simt

MUSE_REGISTER_VARIANT(attention, simt, attention_simt::make_variant())
