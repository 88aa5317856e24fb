// SPDX-License-Identifier: Apache-2.0
// attention/register_direct: split-KV for one or two query tokens, from global memory straight into
// the fragments of f16 tensor cores.
#include "variants/attention/register_direct.cuh"

#include <algorithm>
#include <utility>
#include <vector>

#include "variants/contract.h"
#include "variants/device/attention_contract.h"
#include "variants/device/direct_contract.h"
#include "variants/device/epilogue_contract.h"
#include "variants/registry.h"

namespace muse::attention_register_direct {
namespace {

int64_t shared_bytes(const Problem& problem, const Configuration& configuration) {
  const auto rows =
      static_cast<int>(device::cta_rows(problem, value(configuration, "heads_per_cta")));
  return device::direct_merge_bytes(rows, static_cast<int>(value(configuration, "warps"))) +
         device::epilogue_bytes(rows, static_cast<int>(value(configuration, "cluster")),
                                value(configuration, "gate") != 0);
}

Support supports(const Problem& problem, const Configuration& configuration,
                 const DeviceClass& device) {
  if (problem.q_len == 2 &&
      !holds_2_tokens(static_cast<int>(value(configuration, "tokens")),
                      static_cast<int>(value(configuration, "depth")),
                      static_cast<int>(value(configuration, "heads_per_cta")))) {
    return Support::no("q_len 2 and 16 KB of a warp on their way: registers do not suffice");
  }
  return device::check_direct(problem, configuration, device, shared_bytes(problem, configuration));
}

/// CTAs that an SM holds at once: ctas_per_sm() of register_direct.cuh.
int64_t ctas_per_sm(const Problem& problem, const Configuration& configuration) {
  const auto tunable = [&](const char* name) {
    return static_cast<int>(value(configuration, name));
  };
  const int keys = tunable("heads_per_cta") * tunable("tokens") * tunable("depth");
  const int groups = tunable("heads_per_cta") * static_cast<int>(problem.q_len);
  return std::max(1, warps_per_sm(groups, keys) / tunable("warps"));
}

Geometry geometry(const Problem& problem, const Configuration& configuration,
                  const DeviceClass& device) {
  return device::direct_geometry(problem.q_len == 1 ? "attend_1_token" : "attend_2_tokens", problem,
                                 configuration, shared_bytes(problem, configuration), device,
                                 ctas_per_sm(problem, configuration));
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
      {.name = "tokens", .values = {16, 32}, .default_value = 16},
      {.name = "depth", .values = {1, 2}, .default_value = 1},
      {.name = "warps", .values = {4, 8, 12, 16}, .default_value = 8},
      {.name = "heads_per_cta", .values = {1, 2}, .default_value = 2},
      {.name = "splits", .values = {1, 2, 3, 4, 8, 12, 16, 32, 48, 64}, .default_value = 16},
      {.name = "fill", .values = {0, 1}, .default_value = 0},
      {.name = "partial_bf16", .values = {0, 1}, .default_value = 0}};
  for (Tunable& tunable : device::epilogue_tunables({1, 8, 16})) {
    all.push_back(std::move(tunable));
  }
  return all;
}

std::vector<Constraint> constraints() {
  std::vector<Constraint> all = {
      {.expr = "tokens * heads_per_cta == 32 || (tokens == 32 && depth == 2)",
       .reason = "4 KB a unit; 8 KB only where most is to be under way"},
      {.expr = "(tokens * heads_per_cta * depth != 32 || warps != 12) && "
               "(tokens * heads_per_cta * depth != 64 || warps == 4 || warps == 12) && "
               "(tokens * heads_per_cta * depth != 128 || warps <= 8)",
       .reason = "whole CTAs of the 16, 12 or 8 warps whose registers an SM has"},
      {.expr = "splits % 3 != 0 || (warps == 4 && depth == 2 && cluster == 1)",
       .reason = "three CTAs fill an SM where 12 warps do"},
      {.expr = "heads_per_cta == 2 || (splits >= 8 && depth == 1)",
       .reason = "half rows are read for want of CTAs, by short walks"},
      {.expr = "gate == 1 || (ticket == 0 && splits != cluster) || (depth == 1 && warps == 8)",
       .reason = "once all is merged the gate costs nothing: tried without where nothing else is"},
      {.expr = "partial_bf16 == 0 || (splits >= 32 && cluster == 1 && heads_per_cta == 2)",
       .reason = "few partials are few bytes, whatever their type"},
      {.expr = "cluster == 1 || (depth == 1 && splits >= 8)",
       .reason = "a cluster merges what many CTAs with short walks have"},
      {.expr = "cluster == 1 || ticket == 1 || splits == cluster",
       .reason = "a cluster that leaves partials is for combines that nobody needs"},
      {.expr = "cluster == 1 || ticket == 0 || splits >= 32",
       .reason = "a cluster and a ticket too: where a cluster alone cannot take all splits"},
      {.expr = "fill == 0 || (splits == 64 && ticket == 1 && gate == 1 && cluster == 1 && "
               "heads_per_cta == 2 && tokens == 16)",
       .reason = "as many splits as fill the chip: whatever they are, a ticket merges them"}};
  for (Constraint& constraint : device::epilogue_constraints()) {
    all.push_back(std::move(constraint));
  }
  return all;
}

Variant make_variant() {
  Variant variant;
  variant.name = "attention/register_direct";
  device::set_attention_contract(variant);
  variant.tunables = tunables();
  variant.constraints = constraints();
  variant.declared = {
      .batch_invariant = true, .batch_invariant_unless = "fill", .precision = Precision::kF16};
  variant.entries = {"attend_1_token", "attend_2_tokens"};
  variant.supports = supports;
  variant.geometry = geometry;
  variant.bind = bind;
  return variant;
}

}  // namespace
}  // namespace muse::attention_register_direct

MUSE_REGISTER_VARIANT(attention, register_direct, attention_register_direct::make_variant())
