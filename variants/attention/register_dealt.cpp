// SPDX-License-Identifier: Apache-2.0
// attention/register_dealt: the loop of attention/register_direct over splits that are dealt out
// over the chip, for batches whose requests differ in length.
#include "variants/attention/register_dealt.cuh"

#include <fmt/format.h>

#include <algorithm>

#include "variants/contract.h"
#include "variants/device/attention_contract.h"
#include "variants/device/direct_contract.h"
#include "variants/device/epilogue_contract.h"
#include "variants/registry.h"

namespace muse::attention_register_dealt {
namespace {

constexpr int64_t kHeads = device::kDirectKvHeads;  // of a CTA: rows are read as a whole

int64_t shared_bytes(const Problem& problem, const Configuration& configuration) {
  const auto rows = static_cast<int>(device::cta_rows(problem, kHeads));
  return device::direct_merge_bytes(rows, static_cast<int>(value(configuration, "warps"))) +
         static_cast<int64_t>(sizeof(device::DealtPiece)) +
         device::epilogue_bytes(rows, 1, value(configuration, "gate") != 0);
}

/// What a request attends at most, in units.
int64_t most_units(const Problem& problem, int64_t tokens) {
  const int64_t window = problem.window + problem.q_len - 1;
  const int64_t keys =
      problem.windowed() ? std::min(window, problem.max_context) : problem.max_context;
  return (keys + tokens - 1) / tokens;
}

Support supports(const Problem& problem, const Configuration& configuration,
                 const DeviceClass& device) {
  const int64_t tokens = value(configuration, "tokens");
  if (problem.q_len == 2 && tokens * value(configuration, "depth") > 32) {
    return Support::no("q_len 2 and 16 KB of a warp on their way: registers do not suffice");
  }
  if (problem.batch > device::kMostDealtRequests) {
    return Support::no(fmt::format("batch {}: every CTA looks at the lengths of {} at most",
                                   problem.batch, device::kMostDealtRequests));
  }
  if (problem.batch * most_units(problem, tokens) > device::kMostDealtUnits) {
    return Support::no(fmt::format("batch {} and max_context {}: more units of {} keys than {}",
                                   problem.batch, problem.max_context, tokens,
                                   device::kMostDealtUnits));
  }
  return device::check_direct(problem, configuration, device, shared_bytes(problem, configuration));
}

/// As many CTAs as the chip holds at a time, `waves` times; one for each request at least, and no
/// more than splits there can be.
int64_t ctas(const Problem& problem, const Configuration& configuration,
             const DeviceClass& device) {
  const auto chosen = [&](const char* tunable) {
    return static_cast<int>(value(configuration, tunable));
  };
  const int64_t at_a_time =
      device.sm_count * ctas_per_sm(chosen("tokens"), chosen("depth"), chosen("warps"),
                                    static_cast<int>(problem.q_len));
  return std::clamp(at_a_time * chosen("waves"), problem.batch, problem.batch * chosen("splits"));
}

Geometry geometry(const Problem& problem, const Configuration& configuration,
                  const DeviceClass& device) {
  const Launch launch{.entry = problem.q_len == 1 ? "attend_1_token" : "attend_2_tokens",
                      .grid = {.x = ctas(problem, configuration, device)},
                      .block = {.x = value(configuration, "warps") * 32},
                      .cluster = {},
                      .smem_bytes = shared_bytes(problem, configuration),
                      .pdl = true};
  return {.launches = {launch},
          .workspace = device::epilogue_workspace(problem, configuration, kHeads)};
}

Arguments bind(const Problem& problem, const Configuration& configuration, const Buffers& buffers,
               void* workspace, const TensorMapEncoder&, int /*launch*/) {
  Args args{.attention = device::attention_args(problem, buffers)};
  device::set_epilogue_workspace(args.attention, problem, configuration, kHeads, workspace);
  return Arguments::of(args);
}

std::vector<Constraint> constraints() {
  return {
      {.expr = "tokens == 16 || depth == 2",
       .reason = "8 KB a unit only where most is to be under way"},
      {.expr = "(tokens * depth == 32) == (warps == 12) || warps == 4",
       .reason = "whole CTAs of the 16, 12 or 8 warps whose registers an SM has"},
      {.expr = "ticket == gate", .reason = "the gate takes O, and costs a merge nothing"},
      {.expr = fmt::format("(ticket == 1) == (splits == {})", device::kMaxTicketParts),
       .reason = "as many parts as one CTA merges, or as few as the longest request can do with"},
      {.expr = "partial_bf16 == 0 || ticket == 0",
       .reason = "what is merged within the launch stays f32"}};
}

Variant make_variant() {
  Variant variant;
  variant.name = "attention/register_dealt";
  device::set_attention_contract(variant);
  variant.tunables = {{.name = "tokens", .values = {16, 32}, .default_value = 16},
                      {.name = "depth", .values = {1, 2}, .default_value = 2},
                      {.name = "warps", .values = {4, 8, 12}, .default_value = 4},
                      {.name = "waves", .values = {1, 2}, .default_value = 1},
                      {.name = "splits", .values = {64, 128, 256}, .default_value = 128},
                      {.name = "partial_bf16", .values = {0, 1}, .default_value = 0},
                      {.name = "ticket", .values = {0, 1}, .default_value = 0},
                      {.name = "gate", .values = {0, 1}, .default_value = 0}};
  variant.constraints = constraints();
  variant.declared = {.batch_invariant = false, .precision = Precision::kF16};
  variant.entries = {"attend_1_token", "attend_2_tokens"};
  variant.supports = supports;
  variant.geometry = geometry;
  variant.bind = bind;
  return variant;
}

}  // namespace
}  // namespace muse::attention_register_dealt

MUSE_REGISTER_VARIANT(attention, register_dealt, attention_register_dealt::make_variant())
