// SPDX-License-Identifier: Apache-2.0
// What ptxas -v says of each kernel.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace muse::tuner {

/// Negative where the log does not say.
struct KernelFacts {
  int64_t registers = -1;     ///< of a thread
  int64_t shared_bytes = -1;  ///< static
  int64_t spill_bytes = -1;   ///< stores + loads
  bool operator==(const KernelFacts&) const = default;
};

/// By mangled name; kernels that the log does not name are left out.
std::map<std::string, KernelFacts> parse_ptxas_log(std::string_view log);

/// Lines of a log that warn, whoever wrote them.
std::string warnings(std::string_view log);

}  // namespace muse::tuner
