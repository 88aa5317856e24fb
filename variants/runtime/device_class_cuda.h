// SPDX-License-Identifier: Apache-2.0
// The device class of a GPU, in a build with the CUDA target.
#pragma once

#include <tl/expected.hpp>

#include "variants/runtime/device_class.h"

namespace muse {

/// Of the GPU with this ordinal among the visible ones; else the cudaError_t that says why not.
/// Makes no context.
tl::expected<DeviceClass, int> cuda_device_class(int ordinal);

}  // namespace muse
