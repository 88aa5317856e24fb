// SPDX-License-Identifier: Apache-2.0
// The host's side of epilogue.cuh: what its tunables mean for span, hand-off, launch and workspace.
#pragma once

#include <cstdint>
#include <vector>

#include "variants/device/attention_args.h"
#include "variants/variant.h"

namespace muse::device {

/// Parts that a merge by ticket reads at most.
inline constexpr int64_t kMaxTicketParts = 64;

/// The tunables of an epilogue; one that a variant does not have is at its first value.
struct EpilogueChoice {
  int64_t splits = 1;
  int64_t cluster = 1;
  bool ticket = false, gate = false, partial_bf16 = false;
  bool fills = false;  ///< `fill` > 0: as many splits as fill the chip, `splits` at most

  explicit EpilogueChoice(const Configuration& configuration);
  /// What clusters leave, or CTAs without them: S where they stay partials.
  int64_t parts() const { return splits / cluster; }
  /// Whether all splits of a request are merged within the launch.
  bool final() const { return parts() == 1 || ticket; }
  Span span() const;
  Handoff handoff() const;
};

/// cluster with these values, ticket, gate; all off by default. `splits` and `partial_bf16` are the
/// variant's own.
std::vector<Tunable> epilogue_tunables(std::vector<int64_t> clusters);
/// What does not go together.
std::vector<Constraint> epilogue_constraints();

/// Refuses clusters on devices without.
Support check_epilogue(const Configuration& configuration, const DeviceClass& device);

/// Query rows of a CTA.
int64_t cta_rows(const Problem& problem, int64_t heads_per_cta);

/// How many clusters of that size (1: single CTAs) the chip holds at once, `ctas_per_sm` CTAs to an
/// SM; one at least. A cluster lies within one GPC, and what is left over of a GPC's SMs is lost to
/// clusters: the 132 SMs of an H200 hold 15 of 8 and 7 of 16 at one CTA per SM, 30 of 8 at two, not
/// 16, 8 and 33 (cudaOccupancyMaxActiveClusters). One more waits until another has ended. How many
/// SMs each GPC has differs from chip to chip and is no fact of a device class, so the loss is
/// taken to be one cluster for each CTA of an SM.
int64_t clusters_on_chip(const DeviceClass& device, int64_t cluster, int64_t ctas_per_sm);

/// A launch of `entry` with grid (splits, groups of kv heads, requests) and its clusters. Block and
/// shared memory are the variant's. Where the configuration fills the chip, a request has as many
/// splits as the chip has room for, `ctas_per_sm` CTAs to an SM: whole clusters, one at least. It
/// follows from the problem and the device alone, so that a captured graph keeps it.
Launch epilogue_launch(const std::string& entry, const Problem& problem,
                       const Configuration& configuration, int64_t heads_per_cta,
                       const DeviceClass& device, int64_t ctas_per_sm = 1);

/// Of merges by ticket; none otherwise.
Workspace epilogue_workspace(const Problem& problem, const Configuration& configuration,
                             int64_t heads_per_cta);
/// Sets the pointers into that workspace.
void set_epilogue_workspace(AttentionArgs& args, const Problem& problem,
                            const Configuration& configuration, int64_t heads_per_cta,
                            void* workspace);

}  // namespace muse::device
