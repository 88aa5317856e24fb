// SPDX-License-Identifier: Apache-2.0
// Loads the tracing library, turns its refusals into remedies and gathers its records.
#include "profiler/cupti.h"

#include <cupti.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "profiler/dynamic_library.h"

namespace muse::profiler {
namespace {

/// The library zeroes a buffer before it fills it, on the thread that launches: small ones.
constexpr size_t kBufferBytes = size_t{64} << 10;
constexpr size_t kBufferAlignment = 8;
constexpr std::array kKinds{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMSET,
                            CUPTI_ACTIVITY_KIND_MEMCPY,
                            // Regions attach to records of calls, so those are recorded too.
                            CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
                            CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};

struct Api {
  DynamicLibrary library;
  decltype(&cuptiGetVersion) get_version = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiSubscribe_v2) subscribe_v2 = nullptr;  ///< names the tool in the way; may be null
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&cuptiActivityPushExternalCorrelationId) push = nullptr;
  decltype(&cuptiActivityPopExternalCorrelationId) pop = nullptr;
  uint32_t version = 0;

  explicit Api(DynamicLibrary loaded) : library(std::move(loaded)) {}
  template <class F>
  bool find(F& function, const char* symbol) {
    function = reinterpret_cast<F>(library.symbol(symbol));
    return function != nullptr;
  }
  /// The first function that is missing; null where all are there.
  const char* find_all();
};

const char* Api::find_all() {
  if (!find(get_version, "cuptiGetVersion")) return "cuptiGetVersion";
  if (!find(result_string, "cuptiGetResultString")) return "cuptiGetResultString";
  if (!find(subscribe, "cuptiSubscribe")) return "cuptiSubscribe";
  if (!find(unsubscribe, "cuptiUnsubscribe")) return "cuptiUnsubscribe";
  if (!find(register_callbacks, "cuptiActivityRegisterCallbacks"))
    return "cuptiActivityRegisterCallbacks";
  if (!find(enable, "cuptiActivityEnable")) return "cuptiActivityEnable";
  if (!find(disable, "cuptiActivityDisable")) return "cuptiActivityDisable";
  if (!find(flush_all, "cuptiActivityFlushAll")) return "cuptiActivityFlushAll";
  if (!find(next_record, "cuptiActivityGetNextRecord")) return "cuptiActivityGetNextRecord";
  if (!find(dropped, "cuptiActivityGetNumDroppedRecords"))
    return "cuptiActivityGetNumDroppedRecords";
  if (!find(push, "cuptiActivityPushExternalCorrelationId"))
    return "cuptiActivityPushExternalCorrelationId";
  if (!find(pop, "cuptiActivityPopExternalCorrelationId"))
    return "cuptiActivityPopExternalCorrelationId";
  find(subscribe_v2, "cuptiSubscribe_v2");
  return nullptr;
}

/// 130001 -> "13.0.1".
std::string version_text(uint32_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

using Loaded = tl::expected<Api*, TracingError>;

Loaded load() {
  auto library = DynamicLibrary::open({"libcupti.so.13"});
  if (!library) {
    return tl::unexpected(TracingError{
        0,
        fmt::format("{}; install CUPTI of a CUDA Toolkit 13 (package cuda-cupti-13-0) or put its "
                    "folder on LD_LIBRARY_PATH",
                    library.error())});
  }
  auto api = std::make_unique<Api>(*std::move(library));
  if (const char* symbol = api->find_all()) {
    return tl::unexpected(TracingError{
        0,
        fmt::format("{} has no {}: it is no CUPTI 13; put the folder of that of a CUDA Toolkit 13 "
                    "on LD_LIBRARY_PATH",
                    api->library.name(), symbol)});
  }
  const CUptiResult result = api->get_version(&api->version);
  // Records grow at their end within a major version, never before.
  constexpr uint32_t kMajor = CUPTI_API_VERSION / 10000;
  if (result != CUPTI_SUCCESS || api->version / 10000 != kMajor) {
    return tl::unexpected(TracingError{
        static_cast<int>(result),
        fmt::format("{} is CUPTI {}, and this build needs {}.x; put the folder of that one on "
                    "LD_LIBRARY_PATH",
                    api->library.name(), version_text(api->version), kMajor)});
  }
  return api.release();
}

/// Never unloaded: the library keeps a thread and exit handlers.
const Loaded& api_or_error() {
  static const auto* loaded = new Loaded(load());
  return *loaded;
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

TracingError failed(const Api& api, CUptiResult result, const char* call,
                    const std::string& other_tool = "") {
  const char* name = nullptr;
  if (api.result_string(result, &name) != CUPTI_SUCCESS || !name) name = "";
  return {static_cast<int>(result),
          fmt::format("CUPTI cannot start: {}: error {} {}: {}", call, static_cast<int>(result),
                      name, remedy(result, other_tool))};
}

// ---- what the library's callbacks share: they carry no data of ours -----------------------------

/// Buffers go round; records pile up until they are collected.
struct Sink {
  std::mutex mutex;
  std::vector<uint8_t*> free_buffers;
  Trace trace;
  bool collecting = false;  ///< what ends outside of samples is nobody's
  const Api* api = nullptr;
  CUpti_SubscriberHandle subscriber = nullptr;
};

Sink& sink() {
  static auto* the_sink = new Sink;  // outlives the library's thread
  return *the_sink;
}

void CUPTIAPI no_callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

void CUPTIAPI request_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  *size = kBufferBytes;
  *most_records = 0;
  if (s.free_buffers.empty()) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  } else {
    *buffer = s.free_buffers.back();
    s.free_buffers.pop_back();
  }
}

void add_record(Trace& trace, const CUpti_Activity& activity) {
  switch (static_cast<int>(activity.kind)) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& r = reinterpret_cast<const CUpti_ActivityKernel10&>(activity);
      trace.records.push_back({.name = r.name ? r.name : "",
                               .start_ns = r.start,
                               .end_ns = r.end,
                               .correlation = r.correlationId,
                               .node = r.graphNodeId,
                               .grid = r.gridId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& r = reinterpret_cast<const CUpti_ActivityMemset4&>(activity);
      trace.records.push_back({.name = kMemsetName,
                               .start_ns = r.start,
                               .end_ns = r.end,
                               .correlation = r.correlationId,
                               .node = r.graphNodeId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& r = reinterpret_cast<const CUpti_ActivityMemcpy6&>(activity);
      trace.records.push_back({.name = kMemcpyName,
                               .start_ns = r.start,
                               .end_ns = r.end,
                               .correlation = r.correlationId,
                               .node = r.graphNodeId});
      break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& r = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(activity);
      if (r.externalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0) {
        trace.owners[r.correlationId] = r.externalId;
      }
      break;
    }
    default:  // calls: recorded for their regions alone
      break;
  }
}

/// Keeps the room for the next sample.
void forget(Trace& trace) {
  trace.records.clear();
  trace.owners.clear();
  trace.dropped = 0;
}

void CUPTIAPI complete_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  CUpti_Activity* record = nullptr;
  while (valid_bytes > 0 && s.api->next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    add_record(s.trace, *record);
  }
  size_t dropped = 0;
  if (s.api->dropped(nullptr, 0, &dropped) == CUPTI_SUCCESS) s.trace.dropped += dropped;
  if (!s.collecting) forget(s.trace);
  if (buffer) s.free_buffers.push_back(buffer);
}

/// One subscriber at a time: whoever cannot subscribe must not trace either.
tl::expected<CUpti_SubscriberHandle, TracingError> subscribe(const Api& api) {
  CUpti_SubscriberHandle subscriber = nullptr;
  CUptiResult result;
  std::array<char, CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN + 1> other{};
  const char* call = "cuptiSubscribe";
  if (api.subscribe_v2) {
    CUpti_SubscriberParams params{};
    params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
    params.subscriberName = "muse-tune";
    params.oldSubscriberName = other.data();
    params.oldSubscriberSize = other.size() - 1;
    result = api.subscribe_v2(&subscriber, no_callback, nullptr, &params);
    call = "cuptiSubscribe_v2";
  } else {
    result = api.subscribe(&subscriber, no_callback, nullptr);
  }
  if (result != CUPTI_SUCCESS) return tl::unexpected(failed(api, result, call, other.data()));
  return subscriber;
}

void stop(Sink& s, size_t enabled_kinds) {
  for (size_t i = 0; i < enabled_kinds; ++i) s.api->disable(kKinds[i]);
  s.api->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  s.api->unsubscribe(s.subscriber);
  s.subscriber = nullptr;
}

tl::expected<void, TracingError> start(Sink& s, const Api& api) {
  s.api = &api;
  const auto subscriber = subscribe(api);
  if (!subscriber) return tl::unexpected(subscriber.error());
  s.subscriber = *subscriber;
  CUptiResult result = api.register_callbacks(request_buffer, complete_buffer);
  const char* call = "cuptiActivityRegisterCallbacks";
  size_t enabled = 0;
  while (result == CUPTI_SUCCESS && enabled < kKinds.size()) {
    call = "cuptiActivityEnable";
    result = api.enable(kKinds[enabled]);
    if (result == CUPTI_SUCCESS) ++enabled;
  }
  if (result == CUPTI_SUCCESS) return {};
  stop(s, enabled);
  return tl::unexpected(failed(api, result, call));
}

}  // namespace

tl::expected<std::string, TracingError> cupti_version() {
  return api_or_error().map([](const Api* api) { return version_text(api->version); });
}

tl::expected<std::shared_ptr<CuptiTracer>, TracingError> CuptiTracer::open() {
  static std::weak_ptr<CuptiTracer> current;
  if (auto tracer = current.lock()) return tracer;
  const Loaded& api = api_or_error();
  if (!api) return tl::unexpected(api.error());
  if (const auto started = start(sink(), **api); !started) return tl::unexpected(started.error());
  std::shared_ptr<CuptiTracer> tracer(new CuptiTracer);
  current = tracer;
  return tracer;
}

CuptiTracer::~CuptiTracer() { stop(sink(), kKinds.size()); }

void CuptiTracer::clear() {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  forget(s.trace);
  s.collecting = true;
}

uint64_t CuptiTracer::enter() {
  sink().api->push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, ++last_region_);
  return last_region_;
}

void CuptiTracer::leave() {
  uint64_t region = 0;
  sink().api->pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &region);
}

Trace CuptiTracer::collect(uint64_t region, size_t expected) {
  Sink& s = sink();
  // The plain flush holds back a buffer with a record that is not complete; forced, all come.
  for (const uint32_t flag : {uint32_t{0}, uint32_t{CUPTI_ACTIVITY_FLAG_FLUSH_FORCED}}) {
    s.api->flush_all(flag);
    const std::lock_guard lock(s.mutex);
    if (count_of(s.trace, region) >= expected) break;
  }
  const std::lock_guard lock(s.mutex);
  s.collecting = false;
  return std::exchange(s.trace, {});
}

std::string CuptiTracer::version() const { return version_text(sink().api->version); }

}  // namespace muse::profiler
