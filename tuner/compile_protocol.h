// SPDX-License-Identifier: Apache-2.0
// What is said to a compiler process and what it answers, as JSON text for frame().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "variants/variant.h"

namespace muse::tuner {

/// One candidate and where its cubin goes; without a variant only NVRTC's version is asked for.
struct CompileRequest {
  std::string variant;               ///< name of its stem
  std::vector<std::string> entries;  ///< Variant::entries
  Configuration configuration;
  std::string toolkit;  ///< to compile with
  std::string architecture;
  std::string cache;  ///< folder, absolute
  bool operator==(const CompileRequest&) const = default;
};

struct CompileReply {
  enum class Kind : uint8_t {
    kToolkit,      ///< text: "nvrtc 13.0"; targets
    kStored,       ///< the cubin lies in the cache
    kFailed,       ///< text: the log
    kUnavailable,  ///< text: why this toolkit's NVRTC cannot be had
    kNotStored,    ///< text: why the cache cannot be written
  };
  Kind kind = Kind::kFailed;
  std::string text;
  std::vector<int> targets;  ///< compute capabilities
  bool operator==(const CompileReply&) const = default;
};

/// Invalid UTF-8 is replaced.
std::string encode(const CompileRequest& request);
std::string encode(const CompileReply& reply);
/// Inverses; the error says what is wrong.
tl::expected<CompileRequest, std::string> decode_compile_request(std::string_view text);
tl::expected<CompileReply, std::string> decode_compile_reply(std::string_view text);

}  // namespace muse::tuner
