// SPDX-License-Identifier: Apache-2.0
// Knows of every call that launches work which region of its thread it was made in. Needs the
// toolkit's header.
#pragma once

#include <mutex>
#include <vector>

#include "profiler/cupti_library.h"
#include "profiler/kernel_records.h"

namespace muse::profiler {

/// Told by the library at the end of every such call, on the thread that makes it. The number the
/// library gives the call is that of all records of what the call launched, so no call needs a
/// record of its own.
class LaunchRegions {
 public:
  /// Has the subscriber told of launches; gives the first call that failed, and its result.
  struct Started {
    CUptiResult result = CUPTI_SUCCESS;
    const char* call = "";
  };
  static Started start(const CuptiLibrary& cupti, CUpti_SubscriberHandle subscriber);
  /// What to subscribe with; `regions` is a LaunchRegions.
  static void CUPTIAPI on_call(void* regions, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                               const void* call);

  /// What this thread launches from now on lies in the region; 0: in none.
  static void set_region(uint64_t region);

  void clear();
  /// Everything since clear().
  std::vector<TracedLaunch> take();

 private:
  void note(uint32_t correlation, uint64_t region);

  std::mutex mutex_;
  std::vector<TracedLaunch> launches_;
};

}  // namespace muse::profiler
