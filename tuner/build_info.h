// SPDX-License-Identifier: Apache-2.0
// What this binary is: version, revision, compiler.
#pragma once

#include <string>

namespace muse::tuner {

struct BuildInfo {
  std::string version, revision, compiler, flags, build_type;
  std::string toolkit;  ///< what compiled the kernels: the compiler for host variants
};
const BuildInfo& build_info();

/// Built with a CUDA Toolkit.
constexpr bool has_cuda_target() {
#if defined(MUSE_HAS_CUDA)
  return true;
#else
  return false;
#endif
}

}  // namespace muse::tuner
