// SPDX-License-Identifier: Apache-2.0
// fused/one_launch: prepare to gate in one launch, for one or two query tokens.
#include "variants/fused/one_launch.cuh"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "variants/contract.h"
#include "variants/device/attention_contract.h"
#include "variants/device/contract.h"
#include "variants/device/epilogue_contract.h"
#include "variants/device/prepare_contract.h"
#include "variants/registry.h"

namespace muse::fused_one_launch {
namespace {

constexpr int64_t kQueryHeads = 16, kKvHeads = 2;

int64_t shared_bytes(const Problem& problem, const Configuration& configuration) {
  const auto tunable = [&](const char* name) {
    return static_cast<int>(value(configuration, name));
  };
  const int heads = tunable("heads_per_cta");
  const auto rows = static_cast<int>(device::cta_rows(problem, heads));
  return merge_bytes(rows, tunable("warps")) +
         device::epilogue_bytes(rows, tunable("cluster"), tunable("gate") != 0) +
         query_bytes(rows) + own_bytes(static_cast<int>(problem.q_len), heads);
}

Support supports(const Problem& problem, const Configuration& configuration,
                 const DeviceClass& device) {
  Support support = device::check_attention(problem, device);
  if (support.ok()) support = device::check_epilogue(configuration, device);
  if (!support.ok()) return support;
  if (problem.q_len > 2) {
    return Support::no(fmt::format("q_len {}: registers hold the rows of 2", problem.q_len));
  }
  if (problem.q_len == 2 && value(configuration, "warps") > kMostWarpsOf2Tokens) {
    return Support::no(fmt::format("q_len 2 and {} warps: registers suffice for {}",
                                   value(configuration, "warps"), kMostWarpsOf2Tokens));
  }
  if (problem.num_q_heads != kQueryHeads || problem.num_kv_heads != kKvHeads) {
    return Support::no(fmt::format("{} query and {} kv heads: built for {} and {}",
                                   problem.num_q_heads, problem.num_kv_heads, kQueryHeads,
                                   kKvHeads));
  }
  return device::check_shared_memory(shared_bytes(problem, configuration), device);
}

Geometry geometry(const Problem& problem, const Configuration& configuration, const DeviceClass&) {
  const int64_t heads = value(configuration, "heads_per_cta");
  Launch launch = device::epilogue_launch(problem.q_len == 1 ? "step_1_token" : "step_2_tokens",
                                          problem, configuration, heads);
  launch.block = {.x = value(configuration, "warps") * 32};
  launch.smem_bytes = shared_bytes(problem, configuration);
  return {.launches = {launch},
          .workspace = device::epilogue_workspace(problem, configuration, heads)};
}

Arguments bind(const Problem& problem, const Configuration& configuration, const Buffers& buffers,
               void* workspace, const TensorMapEncoder&, int /*launch*/) {
  Args args{.attention = device::attention_args(problem, buffers),
            .prepare = device::prepare_args(problem, buffers, buffers.q8_tap)};
  device::set_epilogue_workspace(args.attention, problem, configuration,
                                 value(configuration, "heads_per_cta"), workspace);
  return Arguments::of(args);
}

std::vector<Tunable> tunables() {
  std::vector<Tunable> all = {
      {.name = "depth", .values = {1, 2}, .default_value = 1},
      {.name = "warps", .values = {4, 8, 12, 16}, .default_value = 8},
      {.name = "warps_per_sm", .values = {12, 16}, .default_value = 16},
      {.name = "heads_per_cta", .values = {1, 2}, .default_value = 2},
      {.name = "splits", .values = {1, 2, 3, 4, 8, 12, 16, 32, 48, 64}, .default_value = 16},
      {.name = "prefetch_pages", .values = {0, 1}, .default_value = 1},
      {.name = "partial_bf16", .values = {0, 1}, .default_value = 0}};
  for (Tunable& tunable : device::epilogue_tunables({1, 8, 16})) {
    if (tunable.name == "cluster") tunable.default_value = 16;
    if (tunable.name == "gate") tunable.default_value = 1;
    all.push_back(std::move(tunable));
  }
  return all;
}

std::vector<Constraint> constraints() {
  std::vector<Constraint> all = {
      {.expr = "warps_per_sm % warps == 0", .reason = "whole CTAs fill an SM"},
      {.expr = "depth == 1 || (warps_per_sm == 12 && cluster == 1)",
       .reason = "12 warps of an SM have registers for two units each, for long walks"},
      {.expr = "splits % 3 != 0 || (warps == 4 && depth == 2)",
       .reason = "three CTAs fill an SM where 12 warps do"},
      {.expr = "heads_per_cta == 2 || splits >= 8",
       .reason = "half rows are read for want of CTAs"},
      {.expr = "prefetch_pages == 1 || (heads_per_cta == 2 && depth == 1 && gate == 1)",
       .reason = "it costs an instruction: tried without where nothing else is tried"},
      {.expr = "ticket == 0 || cluster == 1 || splits >= 32",
       .reason = "a cluster and a ticket too: where a cluster alone cannot take all splits"},
      {.expr = "gate == 1 || ticket == 0",
       .reason = "once a ticket has merged all, the gate costs nothing"},
      {.expr = "gate == 1 || (heads_per_cta == 2 && depth == 1 && warps == 8)",
       .reason = "tried without a gate where nothing else is tried"},
      {.expr = "depth == 1 || heads_per_cta == 2",
       .reason = "half rows are read for want of CTAs, by short walks"},
      {.expr = "partial_bf16 == 0 || splits >= 32",
       .reason = "few partials are few bytes, whatever their type"}};
  for (Constraint& constraint : device::epilogue_constraints()) {
    all.push_back(std::move(constraint));
  }
  return all;
}

Span span(const Configuration& configuration) {
  return {Stage::kPrepare, device::EpilogueChoice(configuration).span().last};
}

Variant make_variant() {
  Variant variant;
  variant.name = "fused/one_launch";
  variant.target = {.kind = TargetKind::kCuda, .minimum_cc = device::kMinimumCc};
  variant.tunables = tunables();
  variant.constraints = constraints();
  variant.declared = {.batch_invariant = true, .precision = Precision::kF16};
  variant.entries = {"step_1_token", "step_2_tokens"};
  variant.supports = supports;
  variant.span = span;
  variant.produces = [](const Problem&, const Configuration& configuration) {
    return device::EpilogueChoice(configuration).handoff();
  };
  variant.consumes = [](const Problem&, const Configuration&, const Handoff& handoff) {
    return takes(HandoffKind::kQkv, handoff);
  };
  variant.geometry = geometry;
  variant.bind = bind;
  return variant;
}

}  // namespace
}  // namespace muse::fused_one_launch

MUSE_REGISTER_VARIANT(fused, one_launch, fused_one_launch::make_variant())
