// SPDX-License-Identifier: Apache-2.0
// Tensor maps for bulk copies, encoded by the driver, in a build with the CUDA target.
#pragma once

#include "variants/variant.h"

namespace muse {

/// Finds the driver's encoder at run time, so that nothing links it. The result refuses with the
/// reason where the driver has none or does not take a request.
TensorMapEncoder make_tensor_map_encoder();

}  // namespace muse
