// SPDX-License-Identifier: Apache-2.0
// The emulator as a target: CUDA variants in memory of the host.
#pragma once

#include <memory>

#include "tuner/backend.h"

namespace muse::simt {

/// What the emulator calls itself: a made-up GPU of CC 9.0.
DeviceClass emulated_device_class();

/// Runs the candidates of compiled_kernels(), blocks on up to `os_threads` threads; others cannot
/// be bound. No graphs, no clusters, no tensor maps.
std::unique_ptr<tuner::Backend> make_simt_backend(int os_threads);

}  // namespace muse::simt
