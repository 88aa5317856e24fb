// SPDX-License-Identifier: Apache-2.0
// What a candidate lets out, as an outcome.
#pragma once

#include <string>

#include "tuner/outcome.h"

namespace muse::tuner {

struct Failure {
  Outcome outcome;
  std::string reason;
};
/// Of the exception in flight; call inside a catch block. bad_alloc is kOom, an unknown type or any
/// other standard one kLaunchFailed, a TrialError its own. A DeviceFault passes through.
Failure current_failure();

}  // namespace muse::tuner
