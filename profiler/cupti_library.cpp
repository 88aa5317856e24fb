// SPDX-License-Identifier: Apache-2.0
// Loads the tracing library and turns its refusals into remedies.
#include "profiler/cupti_library.h"

#include <fmt/format.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace muse::profiler {
namespace {

using Loaded = tl::expected<CuptiLibrary*, TracingError>;

Loaded load() {
  auto library = DynamicLibrary::open({"libcupti.so.13"});
  if (!library) {
    return tl::unexpected(TracingError{
        0,
        fmt::format("{}; install CUPTI of a CUDA Toolkit 13 (package cuda-cupti-13-0) or put its "
                    "folder on LD_LIBRARY_PATH",
                    library.error())});
  }
  auto cupti = std::make_unique<CuptiLibrary>(*std::move(library));
  if (const char* symbol = cupti->find_all()) {
    return tl::unexpected(TracingError{
        0,
        fmt::format("{} has no {}: it is no CUPTI 13; put the folder of that of a CUDA Toolkit 13 "
                    "on LD_LIBRARY_PATH",
                    cupti->library.name(), symbol)});
  }
  const CUptiResult result = cupti->get_version(&cupti->version);
  // Records grow at their end within a major version, never before.
  constexpr uint32_t kMajor = CUPTI_API_VERSION / 10000;
  if (result != CUPTI_SUCCESS || cupti->version / 10000 != kMajor) {
    return tl::unexpected(TracingError{
        static_cast<int>(result),
        fmt::format("{} is CUPTI {}, and this build needs {}.x; put the folder of that one on "
                    "LD_LIBRARY_PATH",
                    cupti->library.name(), cupti_version_text(cupti->version), kMajor)});
  }
  return cupti.release();
}

std::string remedy(CUptiResult result, const std::string& other_tool) {
  switch (static_cast<int>(result)) {
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      return fmt::format(
          "{} already traces this process; run without it (Nsight Systems, Nsight "
          "Compute, compute-sanitizer, cuda-gdb or another profiler)",
          other_tool.empty() ? "another tool" : other_tool);
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return "the driver keeps tracing to administrators; load it with "
             "NVreg_RestrictProfilingToAdminUsers=0, or run as root or with CAP_SYS_ADMIN";
    case CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED:
      return "confidential computing is on; turn it off";
    case CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED:
      return "MIG is on; use the whole GPU";
    case CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED:
    case CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED:
      return "another profiling interface is in use in this process; unset CUDA_INJECTION64_PATH "
             "and "
             "run without other profilers";
    case CUPTI_ERROR_NOT_INITIALIZED:
    case CUPTI_ERROR_UNKNOWN:
      return "the driver is missing, does not start or is older than this CUPTI; see nvidia-smi, "
             "and "
             "use a driver from 580 on";
    default:
      return "see the driver's log (dmesg)";
  }
}

}  // namespace

const char* CuptiLibrary::find_all() {
  const auto find = [this](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(symbol));
    return function != nullptr;
  };
  if (!find(get_version, "cuptiGetVersion")) return "cuptiGetVersion";
  if (!find(result_string, "cuptiGetResultString")) return "cuptiGetResultString";
  if (!find(subscribe, "cuptiSubscribe")) return "cuptiSubscribe";
  if (!find(unsubscribe, "cuptiUnsubscribe")) return "cuptiUnsubscribe";
  if (!find(enable_callback, "cuptiEnableCallback")) return "cuptiEnableCallback";
  if (!find(register_callbacks, "cuptiActivityRegisterCallbacks"))
    return "cuptiActivityRegisterCallbacks";
  if (!find(enable, "cuptiActivityEnable")) return "cuptiActivityEnable";
  if (!find(disable, "cuptiActivityDisable")) return "cuptiActivityDisable";
  if (!find(flush_all, "cuptiActivityFlushAll")) return "cuptiActivityFlushAll";
  if (!find(next_record, "cuptiActivityGetNextRecord")) return "cuptiActivityGetNextRecord";
  if (!find(dropped, "cuptiActivityGetNumDroppedRecords"))
    return "cuptiActivityGetNumDroppedRecords";
  find(subscribe_v2, "cuptiSubscribe_v2");
  return nullptr;
}

std::string cupti_version_text(uint32_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

const Loaded& cupti_library() {
  static const auto* loaded = new Loaded(load());
  return *loaded;
}

TracingError cupti_failed(const CuptiLibrary& cupti, CUptiResult result, const char* call,
                          const std::string& other_tool) {
  const char* name = nullptr;
  if (cupti.result_string(result, &name) != CUPTI_SUCCESS || !name) name = "";
  return {static_cast<int>(result),
          fmt::format("CUPTI cannot start: {}: error {} {}: {}", call, static_cast<int>(result),
                      name, remedy(result, other_tool))};
}

}  // namespace muse::profiler
