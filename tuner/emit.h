// SPDX-License-Identifier: Apache-2.0
// The dispatch table as a C++17 header: exact lookup, each row with its evidence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "variants/lengths.h"
#include "variants/runtime/device_class.h"

namespace muse::tuner {

/// One row: which pipeline for this shape, and why that is believed.
struct DispatchRow {
  Shape shape;
  std::string pipeline;  ///< chain key
  double median_ns = 0, low_ns = 0, high_ns = 0;
  double base_median_ns = 0;
  std::string status;  ///< winner, tie(n), ...
  int64_t run = 0;
  std::string date;  ///< of the run, ISO 8601
};

struct VariantAbi {
  std::string name;
  int abi;
};

struct DispatchTable {
  std::string base;  ///< chain key
  std::string regime, timer;
  DeviceClass device;
  std::string driver, toolkit;
  std::string source_hash;  ///< of the closure of every variant in the table
  std::vector<DispatchRow> rows;
  std::vector<VariantAbi> variants;     ///< every variant named in the table
  std::string generator = "muse-tune";  ///< with its version
};

/// The context a row is found under, tokens: the mean of the requests' contexts, rounded up, and on
/// windowed layers at most window + L - 1 (no query sees further back).
int64_t dispatch_context(const Shape& shape);

/// The header's text: byte-identical for equal tables (in whatever order) under any locale.
///
/// Shapes that differ only in what the lookup does not see (page order, profile, capacity, numbers
/// beyond yes and no of RoPE and scale, contexts beyond the window) share a key. The chosen row of
/// a key is the one with the larger mean context as measured, then uniform lengths before ragged
/// ones, then the least shape key, then the latest run; the other rows stay behind it as evidence.
/// Throws std::invalid_argument for a time that is no finite number.
std::string dispatch_header(const DispatchTable& table);

}  // namespace muse::tuner
