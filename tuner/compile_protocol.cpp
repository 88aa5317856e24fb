// SPDX-License-Identifier: Apache-2.0
// Requests to and replies of compiler processes as JSON.
#include "tuner/compile_protocol.h"

#include <nlohmann/json.hpp>

namespace muse::tuner {
namespace {

using nlohmann::json;

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string encode(const CompileRequest& request) {
  return dump({{"variant", request.variant},
               {"entries", request.entries},
               {"configuration", request.configuration},
               {"toolkit", request.toolkit},
               {"architecture", request.architecture},
               {"cache", request.cache}});
}

std::string encode(const CompileReply& reply) {
  return dump(
      {{"kind", static_cast<int>(reply.kind)}, {"text", reply.text}, {"targets", reply.targets}});
}

tl::expected<CompileRequest, std::string> decode_compile_request(std::string_view text) {
  try {
    const json value = json::parse(text);
    return CompileRequest{.variant = value.at("variant").get<std::string>(),
                          .entries = value.at("entries").get<std::vector<std::string>>(),
                          .configuration = value.at("configuration").get<Configuration>(),
                          .toolkit = value.at("toolkit").get<std::string>(),
                          .architecture = value.at("architecture").get<std::string>(),
                          .cache = value.at("cache").get<std::string>()};
  } catch (const json::exception& error) {
    return tl::unexpected(std::string(error.what()));
  }
}

tl::expected<CompileReply, std::string> decode_compile_reply(std::string_view text) {
  try {
    const json value = json::parse(text);
    const int kind = value.at("kind").get<int>();
    if (kind < 0 || kind > static_cast<int>(CompileReply::Kind::kNotStored)) {
      return tl::unexpected("no reply is of kind " + std::to_string(kind));
    }
    return CompileReply{.kind = static_cast<CompileReply::Kind>(kind),
                        .text = value.at("text").get<std::string>(),
                        .targets = value.at("targets").get<std::vector<int>>()};
  } catch (const json::exception& error) {
    return tl::unexpected(std::string(error.what()));
  }
}

}  // namespace muse::tuner
