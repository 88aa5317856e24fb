// SPDX-License-Identifier: Apache-2.0
// What the contracts of CUDA variants have in common: checks of a problem against the device, a
// launch over the rows of heads.
#pragma once

#include <cstdint>
#include <string>

#include "variants/variant.h"

namespace muse::device {

/// The oldest architecture that the shared device code serves.
inline constexpr int kMinimumCc = 80;

/// What every CUDA variant refuses: a device that is no GPU or older than `minimum_cc`, a head_dim
/// other than 64, query heads that the kv heads do not divide, more rows of heads than 32 bits
/// count.
Support check_cuda(const Problem& problem, const DeviceClass& device, int minimum_cc = kMinimumCc);

/// For kernels that find a key's page by shift and mask: only powers of two.
Support check_page_size(const Problem& problem);

/// A launch of `lanes` threads for each of `rows` rows in blocks of `threads`; it may start before
/// its predecessor has ended, so the kernel waits itself.
Launch row_launch(const std::string& entry, int64_t rows, int64_t lanes, int64_t threads);

}  // namespace muse::device
