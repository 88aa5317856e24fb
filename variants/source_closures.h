// SPDX-License-Identifier: Apache-2.0
// The generated table behind code_hash(): one line a stem, ended by a line of nulls.
#pragma once

namespace muse {

struct SourceClosure {
  const char* name;  ///< "stage/stem"
  const char* hash;  ///< 32 hex digits
};
extern const SourceClosure kSourceClosures[];

}  // namespace muse
