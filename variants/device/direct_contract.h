// SPDX-License-Identifier: Apache-2.0
// What the contracts of the variants on direct_rows.cuh have in common. Their tunables include
// warps and heads_per_cta, and those of epilogue_contract.h.
#pragma once

#include <cstdint>
#include <string>

#include "variants/variant.h"

namespace muse::device {

/// What they all refuse: what check_attention() and check_epilogue() do, more than two query
/// tokens, two with more warps than their registers allow, other heads than the loop is built for,
/// more than `shared_bytes` of a CTA on a device that has less.
Support check_direct(const Problem& problem, const Configuration& configuration,
                     const DeviceClass& device, int64_t shared_bytes);

/// One launch of `entry`; device and ctas_per_sm as epilogue_launch() takes them.
Geometry direct_geometry(const std::string& entry, const Problem& problem,
                         const Configuration& configuration, int64_t shared_bytes,
                         const DeviceClass& device, int64_t ctas_per_sm = 1);

}  // namespace muse::device
