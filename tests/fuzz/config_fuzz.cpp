// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: the config loader ends on any bytes, with a config or with diagnostics.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tuner/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto spec = muse::tuner::parse_spec(text, "fuzz.yaml", muse::Registry::global());
  if (!spec && spec.error().empty()) std::abort();
  if (!spec)
    for (const auto& diagnostic : spec.error())
      if (diagnostic.text().empty()) std::abort();
  return 0;
}
