// SPDX-License-Identifier: Apache-2.0
// What the gates' comparisons share: failures, and tensors in pieces for all cores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tuner/gates.h"
#include "variants/reference/parallel.h"

namespace muse::tuner {

inline GateFailure fail(std::string_view buffer, int64_t index, double got, double expected,
                        double limit, std::string what) {
  return {std::string(buffer), index, got, expected, limit, std::move(what)};
}

inline GateFailure fail_reference(std::string_view buffer, int64_t index, double got,
                                  double expected) {
  return fail(buffer, index, got, expected, 0, "the reference itself is not finite");
}

/// Elements that one core judges at a time; with no more than those, no thread is started.
inline constexpr size_t kPieceElements = size_t{1} << 16;

/// part(begin, end) of pieces of 0..count on all cores, in the order of the pieces, which begin at
/// multiples of `grain` whatever the number of cores.
template <class Part>
auto in_pieces(size_t count, size_t grain, const Part& part) {
  const size_t pieces = (count + grain - 1) / grain;
  std::vector<decltype(part(size_t{}, size_t{}))> results(pieces);
  reference::parallel_for(static_cast<int64_t>(pieces), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * grain;
    results[static_cast<size_t>(i)] = part(begin, std::min(count, begin + grain));
  });
  return results;
}

/// The same in whole heads.
inline size_t heads_grain(size_t width) {
  return std::max<size_t>(1, kPieceElements / width) * width;
}

}  // namespace muse::tuner
