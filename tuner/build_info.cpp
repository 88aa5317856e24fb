// SPDX-License-Identifier: Apache-2.0
// Fills in what the build has written down: version, revision, compiler, flags.
#include "tuner/build_info.h"

#include "revision.h"

namespace muse::tuner {

const BuildInfo& build_info() {
  static const BuildInfo info{.version = MUSE_VERSION,
                              .revision = MUSE_REVISION,
                              .compiler = MUSE_COMPILER,
                              .flags = MUSE_FLAGS,
                              .build_type = MUSE_BUILD_TYPE,
                              .toolkit = MUSE_COMPILER};
  return info;
}

}  // namespace muse::tuner
