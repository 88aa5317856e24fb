// SPDX-License-Identifier: Apache-2.0
// What a span must cost and what a candidate should: a time that no right implementation beats, and
// a rough one to order candidates by before anything was measured. Pure.
#pragma once

#include <cstdint>

#include "variants/lengths.h"
#include "variants/variant.h"

namespace muse::tuner {

/// What the device can do at best. 0 = unknown.
struct DeviceLimits {
  double dram_bytes_per_s = 0;  ///< theoretical: bus width * memory clock * 2
  double sm_clock_hz = 0;
  /// The least time of an empty kernel by the timer that the times are taken with.
  double launch_floor_ns = 0;
  bool operator==(const DeviceLimits&) const = default;
};

/// Bytes that the span cannot do without and that are not in the caches in the cold regime: what an
/// untimed predecessor (the stages before the span) wrote or may have read is not counted, nor is
/// anything written, which may stay in the L2. Rows and pages that several queries or heads attend
/// count once.
int64_t compulsory_bytes(const Shape& shape, Span span);

/// A cold sample of the span below this is not a time: the larger of the launch floor and the
/// compulsory bytes at the theoretical bandwidth. They are not added, as bytes may move from a
/// kernel's first nanosecond on. 0 on the host, where no cache is known to be cold and no bandwidth
/// to be the peak.
double floor_ns(const Shape& shape, Span span, const DeviceClass& device,
                const DeviceLimits& limits);

/// A guess of the chain's time, for ordering candidates of one span only: each launch's fixed cost
/// plus the slowest of memory, arithmetic and a CTA's own share, in waves of as many CTAs as fit.
/// `taken` is what the stage before leaves. 0 on the host and where a limit is unknown: no opinion.
double estimate_ns(const Shape& shape, const Chain& chain, const Handoff& taken,
                   const DeviceClass& device, const DeviceLimits& limits);

}  // namespace muse::tuner
