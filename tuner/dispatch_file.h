// SPDX-License-Identifier: Apache-2.0
// An emitted table read back out of its JSON: the inverse of dispatch_json(), strict.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "tuner/emit.h"

namespace muse::tuner {

/// What a muse_dispatch.json says.
struct DispatchFile {
  DispatchTable table;      ///< without what was held out
  std::string header_hash;  ///< of the header's text that it belongs to
};

/// Of dispatch_json()'s text. The error says what is wrong and where in the document; a key that is
/// unknown, missing or of another type is wrong, as is a row whose key is not its shape's.
tl::expected<DispatchFile, std::string> parse_dispatch_json(std::string_view text);

}  // namespace muse::tuner
