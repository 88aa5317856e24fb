// SPDX-License-Identifier: Apache-2.0
// attention/mma: split-KV on f16 tensor cores for any GPU from CC 8.0 on.
#include "variants/attention/mma.cuh"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "variants/contract.h"
#include "variants/device/attention_contract.h"
#include "variants/device/epilogue_contract.h"
#include "variants/registry.h"

namespace muse::attention_mma {
namespace {

/// A kernel and the query rows that one of its warps holds.
struct Entry {
  const char* name;
  int64_t rows;
};

/// The smallest one that holds all rows of a kv head in a warp, else the largest.
Entry entry_of(const Problem& problem) {
  const int64_t rows = problem.q_len * problem.group();
  if (rows <= 8) return {"attend_8_rows", 8};
  if (rows <= 16) return {"attend_16_rows", 16};
  return {"attend_32_rows", 32};
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Warps that a CTA needs so that each of its query rows has one.
int64_t least_warps(const Problem& problem, const Configuration& configuration) {
  const int64_t rows = problem.q_len * problem.group();
  return std::min(value(configuration, "heads_per_cta"), problem.num_kv_heads) *
         ceil_div(rows, entry_of(problem).rows);
}

int64_t shared_bytes(const Problem& problem, const Configuration& configuration) {
  const auto tunable = [&](const char* name) {
    return static_cast<int>(value(configuration, name));
  };
  const auto rows = static_cast<int>(device::cta_rows(problem, tunable("heads_per_cta")));
  return work_bytes(tunable("tile_kv"), tunable("heads_per_cta"),
                    static_cast<int>(entry_of(problem).rows), tunable("warps")) +
         device::epilogue_bytes(rows, tunable("cluster"), tunable("gate") != 0);
}

Support supports(const Problem& problem, const Configuration& configuration,
                 const DeviceClass& device) {
  Support support = device::check_attention(problem, device);
  if (support.ok()) support = device::check_epilogue(configuration, device);
  if (!support.ok()) return support;
  const int64_t least = least_warps(problem, configuration);
  if (least > value(configuration, "warps")) {
    return Support::no(fmt::format("{} query rows of a kv head, {} to a warp: needs {} warps",
                                   problem.q_len * problem.group(), entry_of(problem).rows, least));
  }
  return device::check_shared_memory(shared_bytes(problem, configuration), device);
}

/// CTAs that an SM holds at once: the launch bounds of mma.cuh.
int64_t ctas_per_sm(const Problem& problem, const Configuration& configuration) {
  const bool merges = value(configuration, "cluster") > 1 || value(configuration, "ticket") != 0;
  const int64_t warps = entry_of(problem).rows < 32 ? 16 : merges ? 8 : 12;
  return warps / value(configuration, "warps");
}

Geometry geometry(const Problem& problem, const Configuration& configuration,
                  const DeviceClass& device) {
  const int64_t heads_per_cta = value(configuration, "heads_per_cta");
  Launch launch =
      device::epilogue_launch(entry_of(problem).name, problem, configuration, heads_per_cta, device,
                              ctas_per_sm(problem, configuration));
  launch.block = {.x = value(configuration, "warps") * 32};
  launch.smem_bytes = shared_bytes(problem, configuration);
  return {.launches = {launch},
          .workspace = device::epilogue_workspace(problem, configuration, heads_per_cta)};
}

Arguments bind(const Problem& problem, const Configuration& configuration, const Buffers& buffers,
               void* workspace, const TensorMapEncoder&, int /*launch*/) {
  Args args{.attention = device::attention_args(problem, buffers)};
  device::set_epilogue_workspace(args.attention, problem, configuration,
                                 value(configuration, "heads_per_cta"), workspace);
  return Arguments::of(args);
}

std::vector<Tunable> tunables() {
  std::vector<Tunable> all = {
      {.name = "tile_kv", .values = {32, 64, 128}, .default_value = 64},
      {.name = "warps", .values = {2, 4, 8}, .default_value = 4},
      {.name = "heads_per_cta", .values = {1, 2}, .default_value = 2},
      {.name = "splits", .values = {1, 4, 8, 16, 32, 64}, .default_value = 16},
      {.name = "fill", .values = {0, 1}, .default_value = 0},
      {.name = "partial_bf16", .values = {0, 1}, .default_value = 0}};
  for (Tunable& tunable : device::epilogue_tunables({1, 8, 16})) {
    all.push_back(std::move(tunable));
  }
  return all;
}

std::vector<Constraint> constraints() {
  std::vector<Constraint> all = {
      {.expr = "tile_kv * heads_per_cta >= 16 * warps",
       .reason = "each warp takes a block of 16 keys of the tile at least"},
      {.expr = "tile_kv * heads_per_cta <= 32 * warps",
       .reason = "a thread copies four rows of a tile at most, whose pages it holds in registers"},
      {.expr = "partial_bf16 == 0 || splits >= 16",
       .reason = "few partials are few bytes, whatever their type"},
      {.expr =
           "(cluster == 1 && ticket == 0) || (warps >= 4 && heads_per_cta == 2 && tile_kv >= 64)",
       .reason = "merges within the launch pay where a CTA has work to merge"},
      {.expr = "cluster == 1 || ticket == 1 || splits == cluster",
       .reason = "a cluster that leaves partials is for combines that nobody needs"},
      {.expr = "gate == 1 || (ticket == 0 && splits != cluster) || (warps == 8 && tile_kv == 64)",
       .reason = "once all is merged the gate costs nothing: tried without where nothing else is"},
      {.expr = "cluster == 1 || ticket == 0 || splits >= 32",
       .reason = "a cluster and a ticket too: where a cluster alone cannot take all splits"},
      {.expr = "fill == 0 || (splits == 64 && cluster == 8 && ticket == 1 && warps == 8)",
       .reason = "as many splits as fill the chip, in clusters: attention/async_ring has others"}};
  for (Constraint& constraint : device::epilogue_constraints()) {
    all.push_back(std::move(constraint));
  }
  return all;
}

Variant make_variant() {
  Variant variant;
  variant.name = "attention/mma";
  device::set_attention_contract(variant);
  variant.tunables = tunables();
  variant.constraints = constraints();
  variant.declared = {
      .batch_invariant = true, .batch_invariant_unless = "fill", .precision = Precision::kF16};
  variant.entries = {"attend_8_rows", "attend_16_rows", "attend_32_rows"};
  variant.supports = supports;
  variant.geometry = geometry;
  variant.bind = bind;
  return variant;
}

}  // namespace
}  // namespace muse::attention_mma

MUSE_REGISTER_VARIANT(attention, mma, attention_mma::make_variant())
