// SPDX-License-Identifier: Apache-2.0
// The functions of NVIDIA's tracing library, found at run time. Needs the toolkit's header.
#pragma once

#include <cupti.h>

#include <string>
#include <tl/expected.hpp>

#include "profiler/cupti_sampler.h"
#include "profiler/dynamic_library.h"

namespace muse::profiler {

struct CuptiLibrary {
  DynamicLibrary library;
  decltype(&cuptiGetVersion) get_version = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiSubscribe_v2) subscribe_v2 = nullptr;  ///< names the tool in the way; may be null
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableCallback) enable_callback = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  uint32_t version = 0;

  explicit CuptiLibrary(DynamicLibrary loaded) : library(std::move(loaded)) {}
  /// Looks everything up. The first function that is missing; null where all are there.
  const char* find_all();
};

/// Loaded once and never unloaded: the library keeps a thread and exit handlers.
const tl::expected<CuptiLibrary*, TracingError>& cupti_library();

/// 130001 -> "13.0.1".
std::string cupti_version_text(uint32_t version);

/// What a failed call means and what to do. `other_tool`: who holds the library, where it is known.
TracingError cupti_failed(const CuptiLibrary& cupti, CUptiResult result, const char* call,
                          const std::string& other_tool = "");

}  // namespace muse::profiler
