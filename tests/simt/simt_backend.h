// SPDX-License-Identifier: Apache-2.0
// The emulator as a target: CUDA variants in memory of the host.
#pragma once

#include <memory>
#include <vector>

#include "tests/simt/kernel_table.h"
#include "tuner/backend.h"

namespace muse::simt {

/// What the emulator calls itself: a made-up GPU of CC 9.0.
DeviceClass emulated_device_class();

/// Runs the candidates of compiled_kernels(), blocks on up to `os_threads` threads; others cannot
/// be bound. No graphs, no clusters, no tensor maps.
std::unique_ptr<tuner::Backend> make_simt_backend(int os_threads);
/// The same with kernels of a table that outlives it.
std::unique_ptr<tuner::Backend> make_simt_backend(int os_threads,
                                                  const std::vector<CompiledKernel>& kernels);

}  // namespace muse::simt
