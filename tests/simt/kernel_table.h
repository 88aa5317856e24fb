// SPDX-License-Identifier: Apache-2.0
// The candidates whose kernels this build has compiled for the emulator.
#pragma once

#include <vector>

#include "tests/simt/machine.h"

namespace muse::simt {

struct CompiledKernel {
  const char* candidate;  ///< its key
  const char* entry;      ///< of Variant::entries
  Kernel kernel;
};

/// Ordered by variant; its default configuration first.
const std::vector<CompiledKernel>& compiled_kernels();

}  // namespace muse::simt
