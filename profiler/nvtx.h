// SPDX-License-Identifier: Apache-2.0
// Names stretches of the run for whoever looks on with NVIDIA's tools: NVTX domain "muse-tune".
#pragma once

#include <string>

namespace muse::profiler {

/// A range of the calling thread while it lives; in a build without CUDA it is nothing. Never
/// inside a timed region: entering and leaving cost time.
class NvtxRange {
 public:
  explicit NvtxRange(const std::string& name);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace muse::profiler
