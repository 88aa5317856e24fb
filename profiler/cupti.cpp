// SPDX-License-Identifier: Apache-2.0
// The tracing session: gathers the records of what the device ran.
#include "profiler/cupti.h"

#include <array>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "profiler/cupti_library.h"
#include "profiler/launch_regions.h"

namespace muse::profiler {
namespace {

/// The library zeroes a buffer before it fills it, on the thread that launches: small ones.
constexpr size_t kBufferBytes = size_t{64} << 10;
constexpr size_t kBufferAlignment = 8;
constexpr std::array kKinds{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMSET,
                            CUPTI_ACTIVITY_KIND_MEMCPY};

// ---- what the library's callbacks share: they carry no data of ours -----------------------------

/// Buffers go round; records pile up until they are collected.
struct Sink {
  std::mutex mutex;
  std::vector<uint8_t*> free_buffers;
  Trace trace;
  bool collecting = false;  ///< what ends outside of samples is nobody's
  LaunchRegions regions;
  const CuptiLibrary* cupti = nullptr;
  CUpti_SubscriberHandle subscriber = nullptr;
};

Sink& sink() {
  static auto* the_sink = new Sink;  // outlives the library's thread
  return *the_sink;
}

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
    default:  // none that was asked for
      break;
  }
}

/// Keeps the room for the next samples.
void forget(Trace& trace) {
  trace.records.clear();
  trace.launches.clear();
  trace.dropped = 0;
}

void CUPTIAPI complete_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  CUpti_Activity* record = nullptr;
  while (valid_bytes > 0 && s.cupti->next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    add_record(s.trace, *record);
  }
  size_t dropped = 0;
  if (s.cupti->dropped(nullptr, 0, &dropped) == CUPTI_SUCCESS) s.trace.dropped += dropped;
  if (!s.collecting) forget(s.trace);
  if (buffer) s.free_buffers.push_back(buffer);
}

/// One subscriber at a time: whoever cannot subscribe must not trace either.
tl::expected<CUpti_SubscriberHandle, TracingError> subscribe(const CuptiLibrary& cupti,
                                                             LaunchRegions& regions) {
  CUpti_SubscriberHandle subscriber = nullptr;
  CUptiResult result;
  std::array<char, CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN + 1> other{};
  const char* call = "cuptiSubscribe";
  if (cupti.subscribe_v2) {
    CUpti_SubscriberParams params{};
    params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
    params.subscriberName = "muse-tune";
    params.oldSubscriberName = other.data();
    params.oldSubscriberSize = other.size() - 1;
    result = cupti.subscribe_v2(&subscriber, LaunchRegions::on_call, &regions, &params);
    call = "cuptiSubscribe_v2";
  } else {
    result = cupti.subscribe(&subscriber, LaunchRegions::on_call, &regions);
  }
  if (result != CUPTI_SUCCESS)
    return tl::unexpected(cupti_failed(cupti, result, call, other.data()));
  return subscriber;
}

void stop(Sink& s, size_t enabled_kinds) {
  for (size_t i = 0; i < enabled_kinds; ++i) s.cupti->disable(kKinds[i]);
  s.cupti->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  s.cupti->unsubscribe(s.subscriber);
  s.subscriber = nullptr;
}

tl::expected<void, TracingError> start(Sink& s, const CuptiLibrary& cupti) {
  s.cupti = &cupti;
  const auto subscriber = subscribe(cupti, s.regions);
  if (!subscriber) return tl::unexpected(subscriber.error());
  s.subscriber = *subscriber;
  CUptiResult result = cupti.register_callbacks(request_buffer, complete_buffer);
  const char* call = "cuptiActivityRegisterCallbacks";
  size_t enabled = 0;
  while (result == CUPTI_SUCCESS && enabled < kKinds.size()) {
    call = "cuptiActivityEnable";
    result = cupti.enable(kKinds[enabled]);
    if (result == CUPTI_SUCCESS) ++enabled;
  }
  if (result == CUPTI_SUCCESS) {
    const LaunchRegions::Started listening = LaunchRegions::start(cupti, s.subscriber);
    result = listening.result;
    call = listening.call;
  }
  if (result == CUPTI_SUCCESS) return {};
  stop(s, enabled);
  return tl::unexpected(cupti_failed(cupti, result, call));
}

}  // namespace

tl::expected<std::string, TracingError> cupti_version() {
  return cupti_library().map(
      [](const CuptiLibrary* cupti) { return cupti_version_text(cupti->version); });
}

tl::expected<std::shared_ptr<CuptiTracer>, TracingError> CuptiTracer::open() {
  static std::weak_ptr<CuptiTracer> current;
  if (auto tracer = current.lock()) return tracer;
  const auto& cupti = cupti_library();
  if (!cupti) return tl::unexpected(cupti.error());
  if (const auto started = start(sink(), **cupti); !started) {
    return tl::unexpected(started.error());
  }
  std::shared_ptr<CuptiTracer> tracer(new CuptiTracer);
  current = tracer;
  return tracer;
}

CuptiTracer::~CuptiTracer() { stop(sink(), kKinds.size()); }

void CuptiTracer::begin() {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  forget(s.trace);
  s.regions.clear();
  s.collecting = true;
}

void CuptiTracer::end() {
  Sink& s = sink();
  const std::lock_guard lock(s.mutex);
  s.collecting = false;
}

uint64_t CuptiTracer::enter() {
  LaunchRegions::set_region(++last_region_);
  return last_region_;
}

void CuptiTracer::leave() { LaunchRegions::set_region(0); }

// The plain flush holds back a buffer with a record that is not complete; forced, all come.
Trace CuptiTracer::take(Flush flush) {
  Sink& s = sink();
  s.cupti->flush_all(flush == Flush::kLast ? uint32_t{CUPTI_ACTIVITY_FLAG_FLUSH_FORCED} : 0);
  const std::lock_guard lock(s.mutex);
  Trace trace = std::exchange(s.trace, {});
  trace.launches = s.regions.take();  // after the records
  return trace;
}

std::string CuptiTracer::version() const { return cupti_version_text(sink().cupti->version); }

}  // namespace muse::profiler
