// SPDX-License-Identifier: Apache-2.0
// What decode kernels shall reach, what was measured, and whether that is it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "variants/lengths.h"

namespace muse::bench {

/// A time, and what took it: a chain key, or the geometry of a gather.
struct Timed {
  std::string what;
  double us = 0;
};

/// Of one shape, what could be measured. All by one timer in one run.
struct ShapeFigures {
  Shape shape;
  std::optional<Timed> pipeline;         ///< the chosen one, as one graph
  std::optional<Timed> unknown_context;  ///< the one chosen for every context of these shapes
  std::optional<Timed> gather;           ///< of the rows that attention must read
  std::optional<Timed> attention;        ///< partials left behind
  std::optional<Timed> complete;         ///< attention, combine included
  std::optional<double> seed_us;         ///< the other pipeline's time, scaled to this card
  std::optional<int64_t> spill_bytes;    ///< of all kernels of the chosen pipeline
  int64_t kv_bytes = 0;                  ///< that attention must read
};

struct DecodeFigures {
  std::string device;
  double null_us = 0, read_us = 0;  ///< a graph of one empty kernel; a read of 512 MiB
  size_t seed_shapes = 0;           ///< how many the other pipeline was timed on
  std::vector<ShapeFigures> shapes;
};

enum class Verdict : uint8_t { kMet, kMissed, kNotMeasured };
std::string_view name(Verdict verdict);  ///< met, missed, not measured

struct Line {
  std::string what, target;
  std::string unit;  ///< of limit and figure: "", "us", "bytes"
  double limit = 0;
  bool at_least = true;  ///< else at most
  std::optional<double> figure;
  std::string of;  ///< the shape that decides, or what is missing
  Verdict verdict = Verdict::kNotMeasured;
};

/// One for each target, in a fixed order. A line that lacks a shape is not measured, whatever the
/// others say.
std::vector<Line> decode_lines(const DecodeFigures& figures);

/// The lines and the shapes as two tables.
std::string decode_markdown(const DecodeFigures& figures);
std::string decode_json(const DecodeFigures& figures);

}  // namespace muse::bench
