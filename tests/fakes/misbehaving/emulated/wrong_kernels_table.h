// SPDX-License-Identifier: Apache-2.0
// The kernels with planted faults that are compiled for the emulator.
#pragma once

#include <vector>

#include "tests/simt/kernel_table.h"

namespace muse::fakes {

const std::vector<simt::CompiledKernel>& emulated_wrong_kernels();

}  // namespace muse::fakes
