// SPDX-License-Identifier: Apache-2.0
// Chains by short names, for tests.
#pragma once

#include <string>
#include <utility>

#include "variants/registry.h"

namespace muse::fakes {

/// The chain of that text, in which tunables that are not named have their defaults.
inline Chain chain_of(std::string text) {
  std::string whole;
  while (!text.empty()) {
    const size_t plus = text.find(" + ");
    const std::string part = text.substr(0, plus);
    text = plus == std::string::npos ? "" : text.substr(plus + 3);
    const size_t colon = part.find(':');
    Candidate candidate = Registry::global().parse_candidate(part.substr(0, colon)).value();
    std::string values = colon == std::string::npos ? "" : part.substr(colon + 1);
    while (!values.empty()) {
      const size_t equals = values.find('='), comma = values.find(',');
      candidate.configuration[values.substr(0, equals)] = std::stoll(values.substr(equals + 1));
      values = comma == std::string::npos ? "" : values.substr(comma + 1);
    }
    whole += (whole.empty() ? "" : " + ") + key(candidate);
  }
  return Registry::global().parse_chain(whole).value();
}

}  // namespace muse::fakes
