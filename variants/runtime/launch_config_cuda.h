// SPDX-License-Identifier: Apache-2.0
// A launch as cudaLaunchKernelExC takes it: the same for a sweep's kernels and for those compiled
// ahead of time. Empty in a build without the CUDA target.
#pragma once

#if defined(MUSE_HAS_CUDA)
#include <cuda_runtime_api.h>

#include "variants/variant.h"

namespace muse {

inline int64_t volume(const Dim3& dim) { return dim.x * dim.y * dim.z; }

class LaunchConfig {
 public:
  /// `programmatic`: may start before its predecessor in the stream has ended.
  LaunchConfig(const Launch& launch, bool programmatic) {
    config_.gridDim = to_dim3(launch.grid);
    config_.blockDim = to_dim3(launch.block);
    config_.dynamicSmemBytes = static_cast<size_t>(launch.smem_bytes);
    config_.attrs = attributes_;
    if (volume(launch.cluster) != 1) {
      cudaLaunchAttribute& cluster = attributes_[config_.numAttrs++];
      cluster.id = cudaLaunchAttributeClusterDimension;
      const dim3 dim = to_dim3(launch.cluster);
      cluster.val.clusterDim = {dim.x, dim.y, dim.z};
    }
    if (programmatic) {
      cudaLaunchAttribute& serialization = attributes_[config_.numAttrs++];
      serialization.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      serialization.val.programmaticStreamSerializationAllowed = 1;
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  /// Its attributes are this object's: not beyond its life.
  cudaLaunchConfig_t on(cudaStream_t stream) const {
    cudaLaunchConfig_t config = config_;
    config.stream = stream;
    return config;
  }

 private:
  static dim3 to_dim3(const Dim3& dim) {
    return {static_cast<unsigned>(dim.x), static_cast<unsigned>(dim.y),
            static_cast<unsigned>(dim.z)};
  }

  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

}  // namespace muse
#endif
