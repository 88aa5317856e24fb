// SPDX-License-Identifier: Apache-2.0
// fused/one_launch: prepare to gate in one launch, for one or two query tokens.
#include "variants/fused/one_launch.cuh"

#include <algorithm>
#include <utility>
#include <vector>

#include "variants/contract.h"
#include "variants/device/attention_contract.h"
#include "variants/device/contract.h"
#include "variants/device/direct_contract.h"
#include "variants/device/epilogue_contract.h"
#include "variants/device/prepare_contract.h"
#include "variants/registry.h"

namespace muse::fused_one_launch {
namespace {

int64_t shared_bytes(const Problem& problem, const Configuration& configuration) {
  const auto tunable = [&](const char* name) {
    return static_cast<int>(value(configuration, name));
  };
  const int heads = tunable("heads_per_cta");
  const auto rows = static_cast<int>(device::cta_rows(problem, heads));
  return device::direct_merge_bytes(rows, tunable("warps")) +
         device::epilogue_bytes(rows, tunable("cluster"), tunable("gate") != 0) +
         query_bytes(rows) + own_bytes(static_cast<int>(problem.q_len), heads);
}

Support supports(const Problem& problem, const Configuration& configuration,
                 const DeviceClass& device) {
  if (problem.q_len == 2 && value(configuration, "depth") == 1 &&
      value(configuration, "warps_per_sm") != 16) {
    return Support::no("q_len 2: registers leave an SM 8 warps, whatever is asked: tried with 16");
  }
  if (problem.q_len == 2 && value(configuration, "swapped") != 0) {
    return Support::no("q_len 2 and swapped products: rows of two tokens fill them as they are");
  }
  return device::check_direct(problem, configuration, device, shared_bytes(problem, configuration));
}

/// CTAs that an SM holds at once: ctas_per_sm() of one_launch.cuh.
int64_t ctas_per_sm(const Problem& problem, const Configuration& configuration,
                    const DeviceClass& device) {
  const int64_t most = problem.q_len > 1 ? 8 : device.cc < 90 ? 12 : 16;
  const int64_t warps = std::min(most, value(configuration, "warps_per_sm"));
  return std::max<int64_t>(1, warps / value(configuration, "warps"));
}

Geometry geometry(const Problem& problem, const Configuration& configuration,
                  const DeviceClass& device) {
  return device::direct_geometry(problem.q_len == 1 ? "step_1_token" : "step_2_tokens", problem,
                                 configuration, shared_bytes(problem, configuration), device,
                                 ctas_per_sm(problem, configuration, device));
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
      {.name = "warps_per_sm", .values = {8, 12, 16}, .default_value = 16},
      {.name = "heads_per_cta", .values = {1, 2}, .default_value = 2},
      {.name = "swapped", .values = {0, 1}, .default_value = 0},
      {.name = "splits", .values = {1, 2, 3, 4, 8, 12, 16, 32, 48, 64}, .default_value = 16},
      {.name = "fill", .values = {0, 1, 2}, .default_value = 0},
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
      {.expr = "warps_per_sm >= 12 || depth == 2 || (heads_per_cta == 1 && warps == 8)",
       .reason = "8 warps of an SM where more registers are of use"},
      {.expr = "swapped == 0 || (heads_per_cta == 1 && warps_per_sm == 16 && "
               "warps <= 8 && cluster > 1)",
       .reason = "columns are heads of one kv head: for short walks; 16 warps have the registers"},
      {.expr = "warps_per_sm <= 12 || (depth == 1 && (heads_per_cta == 2 || swapped == 1))",
       .reason = "at 128 registers two units, or half rows, leave words in memory"},
      {.expr = "depth == 1 || cluster == 1 || warps <= 8",
       .reason = "a cluster of CTAs that fill an SM each finds no room"},
      {.expr = "splits % 3 != 0 || (warps == 4 && depth == 2 && cluster == 1)",
       .reason = "three CTAs fill an SM where 12 warps do"},
      {.expr = "heads_per_cta == 2 || splits >= 8",
       .reason = "half rows are read for want of CTAs"},
      {.expr = "ticket == 0 || cluster == 1 || splits >= 32",
       .reason = "a cluster and a ticket too: where a cluster alone cannot take all splits"},
      {.expr = "gate == 1 || ticket == 0",
       .reason = "once a ticket has merged all, the gate costs nothing"},
      {.expr = "gate == 1 || (heads_per_cta == 2 && depth == 1 && warps == 8)",
       .reason = "tried without a gate where nothing else is tried"},
      {.expr = "depth == 1 || heads_per_cta == 2",
       .reason = "half rows are read for want of CTAs, by short walks"},
      {.expr = "fill == 0 || (splits == 64 && ticket == 1)",
       .reason = "as many splits as fill the chip: whatever they are, a ticket merges them"},
      {.expr = "fill == 0 || (fill == 1 && cluster == 1) || "
               "(fill == 2 && cluster >= 8 && heads_per_cta == 2 && warps_per_sm == 8 && "
               "(cluster == 8 || warps == 8))",
       .reason = "clusters that fill the chip find no room, unless their walks are long"},
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
  variant.declared = {
      .batch_invariant = true, .batch_invariant_unless = "fill", .precision = Precision::kF16};
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
