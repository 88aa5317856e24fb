// SPDX-License-Identifier: Apache-2.0
// Spans, hand-offs, launches and workspaces by the tunables of an epilogue.
#include "variants/device/epilogue_contract.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "variants/contract.h"

namespace muse::device {
namespace {

int64_t value_or(const Configuration& configuration, std::string_view tunable, int64_t otherwise) {
  const auto found = configuration.find(tunable);
  return found == configuration.end() ? otherwise : found->second;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Floats of each piece of the workspace, in its order.
struct WorkspacePieces {
  int64_t part_o, part_stats, tickets;

  WorkspacePieces(const Problem& problem, const EpilogueChoice& choice, int64_t heads_per_cta) {
    const int64_t groups = problem.batch * ceil_div(problem.num_kv_heads, heads_per_cta);
    const int64_t rows = groups * choice.parts() * cta_rows(problem, heads_per_cta);
    part_o = rows * kHeadDim;
    part_stats = rows * 2;
    tickets = groups * choice.cluster;
  }
};

}  // namespace

EpilogueChoice::EpilogueChoice(const Configuration& configuration)
    : splits(value(configuration, "splits")),
      cluster(value_or(configuration, "cluster", 1)),
      ticket(value_or(configuration, "ticket", 0) != 0),
      gate(value_or(configuration, "gate", 0) != 0),
      partial_bf16(value_or(configuration, "partial_bf16", 0) != 0),
      fills(value_or(configuration, "fill", 0) != 0) {}

Span EpilogueChoice::span() const {
  if (!final()) return {Stage::kAttention, Stage::kAttention};
  return {Stage::kAttention, gate ? Stage::kGate : Stage::kCombine};
}

Handoff EpilogueChoice::handoff() const {
  if (gate) return {.kind = HandoffKind::kOut};
  return attention_handoff(final() ? 1 : parts(),
                           partial_bf16 ? PartialType::kBf16 : PartialType::kF32);
}

std::vector<Tunable> epilogue_tunables(std::vector<int64_t> clusters) {
  return {{.name = "cluster", .values = std::move(clusters), .default_value = 1},
          {.name = "ticket", .values = {0, 1}, .default_value = 0},
          {.name = "gate", .values = {0, 1}, .default_value = 0}};
}

std::vector<Constraint> epilogue_constraints() {
  return {{.expr = "splits % cluster == 0", .reason = "a cluster takes splits of one request"},
          {.expr = "ticket == 0 || splits > cluster",
           .reason = "a cluster that takes all splits has nothing left to merge by ticket"},
          {.expr = fmt::format("ticket == 0 || splits <= {} * cluster", kMaxTicketParts),
           .reason = "one CTA reads all parts: so many cost more than a launch"},
          {.expr = "gate == 0 || ticket == 1 || splits == cluster",
           .reason = "the gate takes O, which is there once all splits are merged"},
          {.expr = "partial_bf16 == 0 || (ticket == 0 && splits > cluster)",
           .reason = "what is merged within the launch stays f32"}};
}

Support check_epilogue(const Configuration& configuration, const DeviceClass& device) {
  const EpilogueChoice choice(configuration);
  if (choice.cluster == 1 || device.cc >= 90) return Support::yes();
  return Support::no(fmt::format("cluster {}: compute capability {}.{} has none", choice.cluster,
                                 device.cc / 10, device.cc % 10));
}

int64_t cta_rows(const Problem& problem, int64_t heads_per_cta) {
  return heads_per_cta * problem.q_len * problem.group();
}

int64_t clusters_on_chip(const DeviceClass& device, int64_t cluster, int64_t ctas_per_sm) {
  if (cluster == 1) return device.sm_count * ctas_per_sm;
  return std::max<int64_t>(1, ctas_per_sm * (device.sm_count / cluster - 1));
}

Launch epilogue_launch(const std::string& entry, const Problem& problem,
                       const Configuration& configuration, int64_t heads_per_cta,
                       const DeviceClass& device, int64_t ctas_per_sm) {
  const EpilogueChoice choice(configuration);
  const int64_t groups = ceil_div(problem.num_kv_heads, heads_per_cta);
  int64_t splits = choice.splits;
  if (choice.fills) {
    const int64_t room = clusters_on_chip(device, choice.cluster, ctas_per_sm);
    const int64_t clusters = std::max<int64_t>(1, room / (problem.batch * groups));
    splits = std::min(splits, clusters * choice.cluster);
  }
  return {.entry = entry,
          .grid = {.x = splits, .y = groups, .z = problem.batch},
          .cluster = {.x = choice.cluster},
          .pdl = true};
}

// Zeroed for the tickets. One is enough: a launch touches it only behind its wait for the one
// before, so consecutive launches do not meet in it.
Workspace epilogue_workspace(const Problem& problem, const Configuration& configuration,
                             int64_t heads_per_cta) {
  const EpilogueChoice choice(configuration);
  if (!choice.ticket) return {};
  const WorkspacePieces pieces(problem, choice, heads_per_cta);
  const int64_t floats = pieces.part_o + pieces.part_stats + pieces.tickets;
  return {.bytes = floats * static_cast<int64_t>(sizeof(float)), .zeroed_once = true};
}

void set_epilogue_workspace(AttentionArgs& args, const Problem& problem,
                            const Configuration& configuration, int64_t heads_per_cta,
                            void* workspace) {
  const EpilogueChoice choice(configuration);
  if (!choice.ticket) return;
  const WorkspacePieces pieces(problem, choice, heads_per_cta);
  args.part_o = static_cast<float*>(workspace);
  args.part_stats = args.part_o + pieces.part_o;
  args.tickets = reinterpret_cast<uint32_t*>(args.part_stats + pieces.part_stats);
}

}  // namespace muse::device
