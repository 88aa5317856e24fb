// SPDX-License-Identifier: Apache-2.0
// NVIDIA's tracing library (CUPTI) loaded at run time, and the one tracing session of this process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "profiler/cupti_sampler.h"
#include "profiler/kernel_records.h"

namespace muse::profiler {

/// "13.0.1" of the library that would be used; loads it and starts nothing.
tl::expected<std::string, TracingError> cupti_version();

/// Records every kernel, memset and copy of this process with the region it was launched in, while
/// it lives. The library allows one session a process, and one process's tool at a time.
class CuptiTracer {
 public:
  /// The session that is open, or a new one. The error says what to do: another tool holds the
  /// library, privileges or the driver are missing, ...
  static tl::expected<std::shared_ptr<CuptiTracer>, TracingError> open();
  ~CuptiTracer();
  CuptiTracer(const CuptiTracer&) = delete;
  CuptiTracer& operator=(const CuptiTracer&) = delete;

  /// Forgets what was recorded so far and starts to keep records, until end(). Work in flight may
  /// still be recorded later.
  void begin();
  void end();
  /// What this thread launches until leave() lies in a region of its own, whose id this gives.
  uint64_t enter();
  void leave();
  /// What has been recorded since the last call, or since begin(), and the launches since then: of
  /// no record the launch comes later. While work runs, records that lie near its own are held
  /// back. `kLast` gives them too, but of what runs then there will be none: only once it has
  /// ended.
  enum class Flush : uint8_t { kComplete, kLast };
  Trace take(Flush flush);

  std::string version() const;

 private:
  CuptiTracer() = default;
  uint64_t last_region_ = 0;
};

}  // namespace muse::profiler
