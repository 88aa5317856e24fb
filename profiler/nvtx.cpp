// SPDX-License-Identifier: Apache-2.0
// Pushes and pops ranges of the NVTX domain; without CUDA there is nothing to do.
#include "profiler/nvtx.h"

#if defined(MUSE_HAS_CUDA)
#include <nvtx3/nvToolsExt.h>
#endif

namespace muse::profiler {

#if defined(MUSE_HAS_CUDA)

namespace {

nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t const the_domain = nvtxDomainCreateA("muse-tune");
  return the_domain;
}

}  // namespace

NvtxRange::NvtxRange(const std::string& name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name.c_str();
  nvtxDomainRangePushEx(domain(), &attributes);
}

NvtxRange::~NvtxRange() { nvtxDomainRangePop(domain()); }

#else

NvtxRange::NvtxRange(const std::string&) {}
NvtxRange::~NvtxRange() = default;

#endif

}  // namespace muse::profiler
