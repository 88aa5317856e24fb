// SPDX-License-Identifier: Apache-2.0
// CUDA error codes, sorted by who suffers from them.
#include "tuner/cuda_error.h"

#include <fmt/format.h>

namespace muse::tuner {

// A list, not a question to the runtime: to ask it would wait for what runs.
bool is_device_fault(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:  // 133 codes, most of which are a wrong argument of ours
      return false;
  }
}

std::string cuda_error_text(cudaError_t error) {
  return fmt::format("CUDA error {} ({}): {}", static_cast<int>(error), cudaGetErrorName(error),
                     cudaGetErrorString(error));
}

std::string cuda_remedy(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case cudaErrorMemoryAllocation:
      return "other processes hold the device's memory: nvidia-smi lists them";
    case cudaErrorStubLibrary:
      return "a stub libcuda.so.1 is found first: take the toolkit's stubs folder off "
             "LD_LIBRARY_PATH";
    case cudaErrorInsufficientDriver:
      return fmt::format(
          "no libcuda.so.1, or one older than CUDA {}.{}: install a newer driver, or give the "
          "container the driver's libraries",
          CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    case cudaErrorDevicesUnavailable:
      return "another process holds the device alone, or its compute mode forbids us: nvidia-smi "
             "shows both";
    case cudaErrorNoDevice:
      return "no device is visible: look at CUDA_VISIBLE_DEVICES and nvidia-smi";
    case cudaErrorInvalidDevice:
      return "use a lower number";
    case cudaErrorSystemNotReady:
      return "the fabric is not up: start nvidia-fabricmanager";
    case cudaErrorSystemDriverMismatch:
      return "kernel module and libcuda.so.1 are of different versions: reboot, or restart the "
             "container";
    case cudaErrorCompatNotSupportedOnDevice:
      return "the forward-compatibility libcuda.so.1 does not serve this device: take it off the "
             "library path";
    default:
      return "nvidia-smi and the kernel log (Xid) say more";
  }
}

void throw_cuda_error(cudaError_t error, const std::string& doing) {
  cudaGetLastError();  // told here; the next call shall not tell it again
  if (is_device_fault(error)) throw DeviceFault(cuda_error_text(error));
  throw TrialError(error == cudaErrorMemoryAllocation ? Outcome::kOom : Outcome::kLaunchFailed,
                   fmt::format("{}: {}", doing, cuda_error_text(error)));
}

}  // namespace muse::tuner
