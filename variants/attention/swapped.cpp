// SPDX-License-Identifier: Apache-2.0
// attention/swapped: split-KV for one or two query tokens, whose tensor core products have keys in
// place of query rows.
#include "variants/attention/swapped.cuh"

#include <utility>
#include <vector>

#include "variants/contract.h"
#include "variants/device/attention_contract.h"
#include "variants/device/direct_contract.h"
#include "variants/device/epilogue_contract.h"
#include "variants/registry.h"

namespace muse::attention_swapped {
namespace {

constexpr int kHeadsPerCta = 1;

int64_t shared_bytes(const Problem& problem, const Configuration& configuration) {
  const auto rows = static_cast<int>(device::cta_rows(problem, kHeadsPerCta));
  return device::direct_merge_bytes(rows, static_cast<int>(value(configuration, "warps"))) +
         device::epilogue_bytes(rows, static_cast<int>(value(configuration, "cluster")),
                                value(configuration, "gate") != 0);
}

Support supports(const Problem& problem, const Configuration& configuration,
                 const DeviceClass& device) {
  return device::check_direct(problem, configuration, device, shared_bytes(problem, configuration));
}

Geometry geometry(const Problem& problem, const Configuration& configuration,
                  const DeviceClass& device) {
  Configuration complete = configuration;
  complete["heads_per_cta"] = kHeadsPerCta;
  return device::direct_geometry(problem.q_len == 1 ? "attend_1_token" : "attend_2_tokens", problem,
                                 complete, shared_bytes(problem, configuration), device);
}

Arguments bind(const Problem& problem, const Configuration& configuration, const Buffers& buffers,
               void* workspace, const TensorMapEncoder&, int /*launch*/) {
  Args args{.attention = device::attention_args(problem, buffers)};
  device::set_epilogue_workspace(args.attention, problem, configuration, kHeadsPerCta, workspace);
  return Arguments::of(args);
}

std::vector<Tunable> tunables() {
  std::vector<Tunable> all = {{.name = "tokens", .values = {16, 32}, .default_value = 32},
                              {.name = "transpose", .values = {0, 1}, .default_value = 1},
                              {.name = "warps", .values = {4, 8, 16}, .default_value = 4},
                              {.name = "splits", .values = {8, 16, 32, 64}, .default_value = 16},
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
      {.expr = "transpose == 1 || (tokens == 32 && warps == 4 && cluster == 16)",
       .reason = "by shuffles: tried where little else differs"},
      {.expr = "warps != 16 || splits == 8", .reason = "so many warps stand in for more splits"},
      {.expr = "cluster == 1 || splits == cluster || ticket == 1",
       .reason = "a cluster that leaves partials is for combines that nobody needs"},
      {.expr = "cluster == 1 || ticket == 0 || splits >= 32",
       .reason = "a cluster and a ticket too: where a cluster alone cannot take all splits"},
      {.expr = "cluster > 1 || (tokens == 32 && warps == 8 && splits > 8 && splits < 64)",
       .reason = "half rows are read for want of CTAs, and clusters merge many: tried without"},
      {.expr = "partial_bf16 == 0 || splits >= 32",
       .reason = "few partials are few bytes, whatever their type"},
      {.expr = "gate == 1 || (cluster == 1 && ticket == 0)",
       .reason = "once all is merged the gate costs nothing"}};
  for (Constraint& constraint : device::epilogue_constraints()) {
    all.push_back(std::move(constraint));
  }
  return all;
}

Variant make_variant() {
  Variant variant;
  variant.name = "attention/swapped";
  device::set_attention_contract(variant);
  variant.tunables = tunables();
  variant.constraints = constraints();
  variant.declared = {.batch_invariant = true, .precision = Precision::kF16};
  variant.entries = {"attend_1_token", "attend_2_tokens"};
  variant.supports = supports;
  variant.geometry = geometry;
  variant.bind = bind;
  return variant;
}

}  // namespace
}  // namespace muse::attention_swapped

MUSE_REGISTER_VARIANT(attention, swapped, attention_swapped::make_variant())
