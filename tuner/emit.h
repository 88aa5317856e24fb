// SPDX-License-Identifier: Apache-2.0
// The dispatch tables as a C++17 header, each row with its evidence; the same as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tuner/dispatch_index.h"
#include "tuner/regret.h"
#include "variants/lengths.h"
#include "variants/runtime/device_class.h"

namespace muse::tuner {

/// What one choice for several shapes costs on one of them.
struct ShapeRegret {
  std::string shape;  ///< key
  double median_ns = 0;
  double regret_pct = 0;
};

/// One row: which pipeline for this shape, and why that is believed.
struct DispatchRow {
  Shape shape;           ///< captured: the one where most is lost
  std::string pipeline;  ///< chain key
  double median_ns = 0, low_ns = 0, high_ns = 0;
  double base_median_ns = 0;
  double regret_pct = 0;  ///< against the best measured; captured: at the worst shape
  std::string status;     ///< winner, tie(n), ...; "limited": not what this shape alone would have;
                          ///< "captured"
  int64_t run = 0;
  std::string date;                       ///< of the run, ISO 8601
  std::string rule = {};                  ///< why it was chosen
  std::vector<std::string> tie_set = {};  ///< chain keys that could not be told from the winner
  std::vector<ShapeRegret> over = {};     ///< captured: every shape it was chosen for
  /// What pipelines lose here against the best measured, in 0.01 %, by chain key; captured: at the
  /// worst of the shapes.
  std::map<std::string, uint16_t> losses = {};
  bool among_siblings = false;  ///< only what was good on siblings raced on the shape
};

struct VariantAbi {
  std::string name;
  int abi;
  std::string source_hash;
};

/// A shape of another sweep, and what a table answers when it is asked for it.
struct HeldOutShape {
  std::string shape;  ///< key
  dispatch::Match match = dispatch::Match::kBase;
  double distance = 0;
  std::string pick;  ///< chain key
  std::string best;  ///< the fastest that was measured on the shape
  double best_ns = 0;
  std::optional<double> pick_ns = {};  ///< none = not measured on the shape
};

/// What the tables are worth on shapes that they were not made of.
struct HeldOut {
  dispatch::Guard guard = dispatch::Guard::kTuned;  ///< of the device that these were measured on
  std::vector<HeldOutShape> shapes, captured;       ///< by table, ordered by shape
  std::map<std::string, std::string> provenance = {};  ///< for the JSON
};

struct DispatchTable {
  std::string base;  ///< chain key
  std::string regime, timer;
  DeviceClass device;
  std::string driver, toolkit;
  std::string source_hash;  ///< of the closure of every variant in the table
  std::vector<DispatchRow> rows;
  std::vector<DispatchRow> captured;  ///< of each key without context one
  dispatch::Rules rules{};
  std::vector<VariantAbi> variants;     ///< every variant named in the table
  std::string generator = "muse-tune";  ///< with its version
  /// Of the rows as they are, against the best that was measured of each shape.
  Regret regret, captured_regret;
  std::map<std::string, std::string> provenance = {};  ///< more of it, for the JSON alone
  std::optional<HeldOut> held_out = {};
};

/// What both tables name, by row or by loss. The base is number 0, the others follow by key. Throws
/// std::invalid_argument for more than a row can number.
std::vector<std::string> named_pipelines(const DispatchTable& table);

/// The context a row is found under, tokens: the mean of the requests' contexts, rounded up, and on
/// windowed layers at most window + L - 1 (no query sees further back).
int64_t dispatch_context(const Shape& shape);

/// What a shape is found under; without `contexts` its context is 0.
dispatch::Key dispatch_key(const Shape& shape, bool contexts);

/// What the choice saves of the base's time; 0 where that is not known.
double margin_pct(const DispatchRow& row);

/// Of rows that share a key the chosen one first, see dispatch_header().
std::vector<DispatchRow> in_preference(std::vector<DispatchRow> rows);

/// 1000 * major + 10 * minor of "CUDA 13.0", "nvrtc 13.0.88", ...; 0 where no number with a point
/// is in the text, or the table is a host's.
int compiler_version(const std::string& toolkit, bool host);

/// The rules of a config's axes ("log2" or "exact" by name) and its limit.
dispatch::Rules dispatch_rules(const std::map<std::string, std::string>& axes, double max_distance);

/// The rows of one table as a lookup walks them, with the texts that they point to.
class IndexedRows {
 public:
  /// Rows name pipelines by their place in `pipelines`.
  IndexedRows(const std::vector<DispatchRow>& rows, const std::vector<std::string>& pipelines,
              bool contexts);
  IndexedRows(const IndexedRows&) = delete;
  IndexedRows& operator=(const IndexedRows&) = delete;
  const DispatchIndex& index() const { return index_; }

 private:
  std::vector<DispatchRow> ordered_;
  std::vector<std::string> shapes_;
  DispatchIndex index_;
};

/// What the files of one emit have in common: a digest of all that the header says, 32 hexadecimal
/// digits, the same for equal tables (in whatever order) under any locale. The header defines
/// MUSE_DISPATCH_TABLE_<id>, which muse_kernels.cu asks for; the JSON has it as "id".
std::string emit_id(const DispatchTable& table);

/// The header's text: byte-identical for equal tables (in whatever order) under any locale.
///
/// Shapes that differ only in what the lookup does not see (page order, profile, capacity, numbers
/// beyond yes and no of RoPE and scale, contexts beyond the window) share a key. The chosen row of
/// a key is the one with the larger mean context as measured, then uniform lengths before ragged
/// ones, then the least shape key, then the latest run; the other rows stay behind it as evidence.
/// Throws std::invalid_argument for a time that is no finite number.
std::string dispatch_header(const DispatchTable& table);

/// Where the table comes from and each row with all its evidence: {schema: "muse.dispatch", ...}.
/// `header_hash` is that of the header's text.
std::string dispatch_json(const DispatchTable& table, const std::string& header_hash);

}  // namespace muse::tuner
