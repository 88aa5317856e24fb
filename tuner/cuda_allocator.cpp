// SPDX-License-Identifier: Apache-2.0
// Blocks by rounded size, kept until memory runs out.
#include "tuner/cuda_allocator.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "tuner/backend.h"
#include "tuner/cuda_error.h"

namespace muse::tuner {
namespace {

/// Others want memory, too: modules, graphs, other processes.
constexpr int64_t kMostKept = int64_t{2} << 30;

/// Few sizes, so that blocks find new owners: small ones by powers of two, large ones by the
/// device's own pages.
int64_t rounded(int64_t bytes) {
  constexpr int64_t kLeast = int64_t{64} << 10, kPage = int64_t{2} << 20;
  if (bytes > kPage) return (bytes + kPage - 1) / kPage * kPage;
  int64_t size = kLeast;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

CudaAllocator::~CudaAllocator() {
  // After a fault this fails like everything else, and the process ends.
  for (const auto& [address, bytes] : bytes_) cudaFree(address);
}

void CudaAllocator::trim() {
  for (auto& [bytes, blocks] : kept_) {
    for (void* address : blocks) {
      bytes_.erase(address);
      cudaFree(address);
    }
  }
  kept_.clear();
  kept_bytes_ = 0;
}

void* CudaAllocator::allocate(int64_t bytes) {
  const int64_t size = bytes < 0 ? bytes : rounded(bytes);
  const auto kept = kept_.find(size);
  if (kept != kept_.end() && !kept->second.empty()) {
    void* address = kept->second.back();
    kept->second.pop_back();
    kept_bytes_ -= size;
    return address;
  }
  void* address = nullptr;
  const auto take = [&] {
    return bytes < 0 ? cudaErrorMemoryAllocation : cudaMalloc(&address, static_cast<size_t>(size));
  };
  cudaError_t error = take();
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // handled here; the next call shall not tell it again
    trim();
    error = take();
  }
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for free memory");
    throw TrialError(
        Outcome::kOom,
        fmt::format("out of device memory: {} bytes requested, {} free of {}", bytes, free, total));
  }
  check(error, "allocating device memory");
  bytes_[address] = size;
  return address;
}

void CudaAllocator::release(void* address) {
  if (!address) return;
  const int64_t bytes = bytes_.at(address);
  if (kept_bytes_ + bytes > kMostKept) {
    bytes_.erase(address);
    cudaFree(address);
    return;
  }
  kept_[bytes].push_back(address);
  kept_bytes_ += bytes;
}

}  // namespace muse::tuner
