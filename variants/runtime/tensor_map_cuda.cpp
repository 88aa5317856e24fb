// SPDX-License-Identifier: Apache-2.0
// A TensorMapRequest in the words of cuTensorMapEncodeTiled; empty in a build without the CUDA
// target.
#include "variants/runtime/tensor_map_cuda.h"

#if defined(MUSE_HAS_CUDA)
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace muse {
namespace {

constexpr unsigned kEncoderVersion = 12000;  ///< the CUDA version whose signature we call

CUtensorMapDataType data_type(Element element) {
  switch (element) {
    case Element::kBf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case Element::kE4m3:
    case Element::kByte:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case Element::kF32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case Element::kI32:
      return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case Element::kI64:
      return CU_TENSOR_MAP_DATA_TYPE_INT64;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

std::optional<CUtensorMapSwizzle> swizzle(int32_t bytes) {
  switch (bytes) {
    case 0:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case 128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    default:
      return std::nullopt;
  }
}

Support encode(PFN_cuTensorMapEncodeTiled_v12000 encode_tiled, const TensorMapRequest& request,
               void* map128) {
  constexpr size_t kMostRank = TensorMapRequest::kMostRank;
  const auto pattern = swizzle(request.swizzle_bytes);
  if (!pattern) return Support::no(fmt::format("no swizzle of {} bytes", request.swizzle_bytes));
  const size_t rank = request.rank;
  if (rank == 0 || rank > kMostRank) {
    return Support::no(fmt::format("a tensor map of {} dimensions", rank));
  }
  cuuint64_t extent[kMostRank], strides[kMostRank];
  cuuint32_t box[kMostRank], every[kMostRank];
  std::copy_n(request.extent.begin(), rank, extent);
  std::copy_n(request.stride_bytes.begin(), rank - 1, strides);
  std::copy_n(request.box.begin(), rank, box);
  std::fill_n(every, rank, 1);
  const CUresult result = encode_tiled(
      static_cast<CUtensorMap*>(map128), data_type(request.element), static_cast<cuuint32_t>(rank),
      const_cast<void*>(request.base), extent, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
      *pattern, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Support::yes();
  return Support::no(
      fmt::format("the driver refuses the tensor map: CUDA error {}", static_cast<int>(result)));
}

}  // namespace

TensorMapEncoder make_tensor_map_encoder() {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &address, kEncoderVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();  // told by the encoder
    return [](const TensorMapRequest&, void*) {
      return Support::no("the driver cannot encode tensor maps");
    };
  }
  const auto encode_tiled = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(address);
  return [encode_tiled](const TensorMapRequest& request, void* map128) {
    return encode(encode_tiled, request, map128);
  };
}

}  // namespace muse
#endif
