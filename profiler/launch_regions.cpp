// SPDX-License-Identifier: Apache-2.0
// Listens to the calls of the CUDA runtime that launch work.
#include "profiler/launch_regions.h"

#include <cuda_runtime_api.h>
#include <cupti_runtime_cbid.h>

#include <array>
#include <utility>

namespace muse::profiler {
namespace {

/// Each has at least one record of what it made the device do. With default streams per thread the
/// runtime has names of its own for them.
constexpr std::array kLaunchCalls{
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000,
    CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_ptsz_v13000,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_ptsz_v11060,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000,
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_ptsz_v9000,
    CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000,
    CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_ptsz_v10000,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_ptds_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DAsync_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemset_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemset_ptds_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_ptsz_v7000,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemset2DAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemset2DAsync_ptsz_v7000,
};

thread_local uint64_t region_of_this_thread = 0;

}  // namespace

LaunchRegions::Started LaunchRegions::start(const CuptiLibrary& cupti,
                                            CUpti_SubscriberHandle subscriber) {
  for (const auto call : kLaunchCalls) {
    const CUptiResult result =
        cupti.enable_callback(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, call);
    if (result != CUPTI_SUCCESS) return {result, "cuptiEnableCallback"};
  }
  return {};
}

void CUPTIAPI LaunchRegions::on_call(void* regions, CUpti_CallbackDomain domain, CUpti_CallbackId,
                                     const void* call) {
  if (region_of_this_thread == 0 || domain != CUPTI_CB_DOMAIN_RUNTIME_API) return;
  const auto& data = *static_cast<const CUpti_CallbackData*>(call);
  if (data.callbackSite != CUPTI_API_EXIT) return;
  // A call that failed launched nothing; its caller reports it.
  if (*static_cast<const cudaError_t*>(data.functionReturnValue) != cudaSuccess) return;
  static_cast<LaunchRegions*>(regions)->note(data.correlationId, region_of_this_thread);
}

void LaunchRegions::set_region(uint64_t region) { region_of_this_thread = region; }

void LaunchRegions::note(uint32_t correlation, uint64_t region) {
  const std::lock_guard lock(mutex_);
  launches_.push_back({correlation, region});
}

void LaunchRegions::clear() {
  const std::lock_guard lock(mutex_);
  launches_.clear();
}

std::vector<TracedLaunch> LaunchRegions::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(launches_, {});
}

}  // namespace muse::profiler
