// SPDX-License-Identifier: Apache-2.0
// What the tables are worth on shapes that they were not made of: looked up as a caller would, and
// held against the best that was measured there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tuner/dispatch_rows.h"
#include "tuner/emit.h"

namespace muse::tuner {

/// Looks every shape up in both tables. `guard` is that of the device the shapes were measured on.
HeldOut held_out(const DispatchTable& table, const std::vector<MeasuredShape>& shapes,
                 dispatch::Guard guard);

/// Time lost against the best, as a ratio less 1; nullopt where the pick was not measured.
std::optional<double> regret(const HeldOutShape& shape);

struct HeldOutSummary {
  int shapes = 0;
  int measured = 0;                   ///< shapes whose pick was measured on them
  int exact = 0, near = 0, base = 0;  ///< how the shapes were found; together all of them
  std::optional<Regret> regret = {};  ///< over the measured; none where there is none of them
  std::string worst = {};             ///< key of the shape where most is lost; empty likewise
  std::vector<std::string> unmeasured = {};  ///< keys of the others
};
HeldOutSummary summary(const std::vector<HeldOutShape>& shapes);

/// "exact", "near", "other device", "base", "invalid".
const char* name(dispatch::Match match);
/// "tuned", "other driver", "other compiler", "near device", "foreign".
const char* name(dispatch::Guard guard);

/// What a guard is asked with; its texts are those of the arguments.
dispatch::Device lookup_device(const DeviceClass& device, const std::string& toolkit);
/// "NVIDIA H200, sm_90a, 132 SMs, 143771 MiB".
std::string text(const DeviceClass& device);

/// As constants of the header.
std::string held_out_text(const HeldOut& held_out);

}  // namespace muse::tuner
