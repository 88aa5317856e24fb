// SPDX-License-Identifier: Apache-2.0
// Times GPU work by the device's own timestamps of every kernel (CUPTI activity records).
#pragma once

#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "profiler/sampler.h"

struct CUstream_st;

namespace muse::profiler {

/// Why the tracing library cannot be used, with the remedy.
struct TracingError {
  int code = 0;  ///< a CUptiResult; 0 where the library itself is the trouble
  std::string what;
};

/// Samples of work enqueued on `stream`, a stream of the current device. take() synchronises the
/// stream; it throws DeviceError where that fails. Symbols are mangled; a memset or copy that
/// `work` enqueues counts as a kernel named "[memset]" or "[memcpy]".
tl::expected<std::unique_ptr<Sampler>, TracingError> make_cupti_sampler(CUstream_st* stream);

}  // namespace muse::profiler
