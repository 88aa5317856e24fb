// SPDX-License-Identifier: Apache-2.0
// What a dispatch row holds for: a kind of device, not one physical card.
#pragma once

#include <cstdint>
#include <string>

namespace muse {

struct DeviceClass {
  std::string model;  ///< "NVIDIA H200"; host: the CPU's model name
  bool host = true;
  int cc = 0;        ///< compute capability * 10; host: 0
  int sm_count = 0;  ///< host: logical CPUs this process may use
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;              ///< host: last-level cache
  int64_t smem_per_block_bytes = 0;  ///< opt-in maximum; host: 0
  int driver_version = 0;            ///< cudaDriverGetVersion; host: 0
  std::string isa;                   ///< host: "avx512", "avx2", "baseline"; CUDA: "sm_90a"

  bool operator==(const DeviceClass&) const = default;
};

/// This machine's CPU.
DeviceClass host_device_class();

/// What machine code for a compute capability is called: "sm_90a" for 90, with the features that
/// only this architecture has, which exist from 9.0 on; "sm_86" for 86.
std::string cuda_architecture(int cc);

}  // namespace muse
