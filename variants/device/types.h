// SPDX-License-Identifier: Apache-2.0
// Integer types for argument blocks and kernels: NVRTC has no standard headers. MUSE_DEVICE_CODE is
// defined where kernels are compiled; a host compiler reads a stem.cuh for its argument block alone.
#pragma once

#if defined(__CUDACC_RTC__)
namespace muse {
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
}  // namespace muse
#else
#include <cstdint>
namespace muse {
using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
}  // namespace muse
#endif

#if (defined(__CUDACC__) || defined(__CUDACC_RTC__)) && !defined(MUSE_DEVICE_CODE)
#define MUSE_DEVICE_CODE 1
#endif
