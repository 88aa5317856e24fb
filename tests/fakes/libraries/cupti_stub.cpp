// SPDX-License-Identifier: Apache-2.0
// Stands in for libcupti.so.13. MUSE_STUB_CUPTI_SUBSCRIBE and MUSE_STUB_CUPTI_ENABLE are what those
// calls return; MUSE_STUB_CUPTI_VERSION is what it says it is. Built with MUSE_STUB_OLD it lacks
// what a library of long ago lacks.
#include <cupti.h>

#include <cstdlib>
#include <cstring>

namespace {

CUptiResult result(const char* variable) {
  const char* text = std::getenv(variable);
  return static_cast<CUptiResult>(text ? std::atoi(text) : 0);
}

}  // namespace

extern "C" {

CUptiResult CUPTIAPI cuptiGetVersion(uint32_t* version) {
  const char* text = std::getenv("MUSE_STUB_CUPTI_VERSION");
  *version = text ? static_cast<uint32_t>(std::atoi(text)) : CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult code, const char** text) {
  *text = code == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
              ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
          : code == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
                                                        : "CUPTI_ERROR_UNKNOWN";
  return CUPTI_SUCCESS;
}
CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*) {
  return result("MUSE_STUB_CUPTI_SUBSCRIBE");
}
CUptiResult CUPTIAPI cuptiSubscribe_v2(CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*,
                                       CUpti_SubscriberParams* params) {
  const CUptiResult code = result("MUSE_STUB_CUPTI_SUBSCRIBE");
  if (code != CUPTI_SUCCESS) {
    std::strncpy(params->oldSubscriberName, "Nosy Profiler", params->oldSubscriberSize);
  }
  return code;
}
CUptiResult CUPTIAPI cuptiUnsubscribe(CUpti_SubscriberHandle) { return CUPTI_SUCCESS; }
CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc,
                                                    CUpti_BuffersCallbackCompleteFunc) {
  return CUPTI_SUCCESS;
}
CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind) {
  return result("MUSE_STUB_CUPTI_ENABLE");
}
CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind) { return CUPTI_SUCCESS; }
CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t) { return CUPTI_SUCCESS; }
CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t*, size_t, CUpti_Activity**) {
  return CUPTI_ERROR_MAX_LIMIT_REACHED;
}
CUptiResult CUPTIAPI cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                                         CUpti_CallbackId) {
  return CUPTI_SUCCESS;
}
#if !defined(MUSE_STUB_OLD)
CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  *dropped = 0;
  return CUPTI_SUCCESS;
}
#endif

}  // extern "C"
