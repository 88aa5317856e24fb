// SPDX-License-Identifier: Apache-2.0
// The kernels of a dispatch table as one CUDA source: production compiles these and no others.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "variants/variant.h"

namespace muse::tuner {

/// Text of muse_kernels.cu: every kernel of every CUDA candidate in the chains once, from the same
/// text as in the sweep, as muse::runtime::kKernels ordered by candidate key and entry. For chains
/// of host candidates alone a comment that says so. `id` is emit_id() of the table that names the
/// chains: the text does not compile beside the muse_dispatch.h of another emit. Without one it is
/// the kernels alone, which need no header beside them. nvcc compiles it as C++17 with the
/// project's root, or include/muse_tune of an installed one, on the include path.
std::string kernels_source(const std::vector<Chain>& chains,
                           const std::optional<std::string>& id = std::nullopt);

}  // namespace muse::tuner
