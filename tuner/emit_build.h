// SPDX-License-Identifier: Apache-2.0
// The CMakeLists.txt beside a dispatch table: what production builds of the folder alone.
#pragma once

#include <string>
#include <string_view>

#include "tuner/emit.h"

namespace muse::tuner {

/// Text of CMakeLists.txt: libmuse_attention.so and muse_selfcheck out of the emitted files and an
/// installed muse_tune of `version` ("0.1.0") or a later one of the same kind.
std::string build_text(const DispatchTable& table, std::string_view version);

/// Whether a CMakeLists.txt says of itself that emit has written it.
bool is_emitted_build(std::string_view text);

}  // namespace muse::tuner
