// SPDX-License-Identifier: Apache-2.0
// Lookups of shapes that made no row, and their sums.
#include "tuner/held_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "tuner/cpp_text.h"
#include "tuner/diagnostic.h"

namespace muse::tuner {
namespace {

HeldOutShape look_up(const MeasuredShape& shape, const DispatchIndex& index,
                     const std::vector<std::string>& pipelines, const dispatch::Rules& rules,
                     dispatch::Guard guard) {
  const dispatch::Choice choice = dispatch::find(
      index.table(), rules, dispatch_key(shape.chosen.shape, true), guard, dispatch::Anything{});
  const auto best = std::min_element(
      shape.times.begin(), shape.times.end(),
      [](const auto& a, const auto& b) { return a.second.median_ns < b.second.median_ns; });
  HeldOutShape result{.shape = key(shape.chosen.shape),
                      .match = choice.match,
                      .distance = choice.distance,
                      .pick = pipelines[static_cast<size_t>(choice.pipeline)],
                      .best = best->first,
                      .best_ns = best->second.median_ns};
  const auto pick = shape.times.find(result.pick);
  if (pick != shape.times.end()) result.pick_ns = pick->second.median_ns;
  return result;
}

std::vector<HeldOutShape> look_up(const std::vector<MeasuredShape>& shapes,
                                  const std::vector<DispatchRow>& rows, const DispatchTable& table,
                                  bool contexts, dispatch::Guard guard) {
  const std::vector<std::string> pipelines = named_pipelines(table);
  const IndexedRows indexed(rows, pipelines, contexts);
  std::vector<HeldOutShape> result;
  for (const MeasuredShape& shape : shapes) {
    result.push_back(look_up(shape, indexed.index(), pipelines, table.rules, guard));
  }
  std::sort(result.begin(), result.end(),
            [](const HeldOutShape& a, const HeldOutShape& b) { return a.shape < b.shape; });
  return result;
}

std::string summary_text(const std::string& prefix, const HeldOutSummary& s) {
  std::string out;
  const std::pair<const char*, int> counts[] = {{"Shapes", s.shapes},
                                                {"Measured", s.measured},
                                                {"Exact", s.exact},
                                                {"Near", s.near},
                                                {"Base", s.base}};
  for (const auto& [name, count] : counts) {
    out += fmt::format("inline constexpr int {}{} = {};\n", prefix, name, count);
  }
  return out + fmt::format(
                   "inline constexpr double {0}RegretPctWorst = {1};\n"
                   "inline constexpr double {0}RegretPctMean = {2};\n"
                   "inline constexpr const char* {0}WorstShape = {3};\n",
                   prefix, decimal(s.regret ? 100 * s.regret->worst : -1),
                   decimal(s.regret ? 100 * s.regret->mean : -1), literal(s.worst));
}

}  // namespace

HeldOut held_out(const DispatchTable& table, const std::vector<MeasuredShape>& shapes,
                 dispatch::Guard guard) {
  return {.guard = guard,
          .shapes = look_up(shapes, table.rows, table, true, guard),
          .captured = look_up(shapes, table.captured, table, false, guard)};
}

std::optional<double> regret(const HeldOutShape& shape) {
  if (!shape.pick_ns) return std::nullopt;
  return *shape.pick_ns / shape.best_ns - 1;
}

HeldOutSummary summary(const std::vector<HeldOutShape>& shapes) {
  HeldOutSummary result;
  double logs = 0, worst = -1;
  for (const HeldOutShape& shape : shapes) {
    ++result.shapes;
    switch (shape.match) {
      case dispatch::Match::kExact:
        ++result.exact;
        break;
      case dispatch::Match::kNear:
      case dispatch::Match::kOtherDevice:
        ++result.near;
        break;
      case dispatch::Match::kBase:
      case dispatch::Match::kInvalid:
        ++result.base;
        break;
    }
    const std::optional<double> lost = regret(shape);
    if (!lost) {
      result.unmeasured.push_back(shape.shape);
      continue;
    }
    ++result.measured;
    logs += std::log1p(*lost);
    if (*lost > worst) {
      worst = *lost;
      result.worst = shape.shape;
    }
  }
  if (result.measured > 0) result.regret = Regret{worst, std::expm1(logs / result.measured)};
  return result;
}

const char* name(dispatch::Match match) {
  switch (match) {
    case dispatch::Match::kExact:
      return "exact";
    case dispatch::Match::kNear:
      return "near";
    case dispatch::Match::kOtherDevice:
      return "other device";
    case dispatch::Match::kBase:
      return "base";
    case dispatch::Match::kInvalid:
      return "invalid";
  }
  std::abort();
}

const char* name(dispatch::Guard guard) {
  switch (guard) {
    case dispatch::Guard::kTuned:
      return "tuned";
    case dispatch::Guard::kOtherDriver:
      return "other driver";
    case dispatch::Guard::kOtherCompiler:
      return "other compiler";
    case dispatch::Guard::kNearDevice:
      return "near device";
    case dispatch::Guard::kForeign:
      return "foreign";
  }
  std::abort();
}

dispatch::Device lookup_device(const DeviceClass& d, const std::string& toolkit) {
  return {d.model.c_str(), d.isa.c_str(),  d.host,           d.cc,
          d.sm_count,      d.memory_bytes, d.driver_version, compiler_version(toolkit, d.host)};
}

std::string text(const DeviceClass& d) {
  return fmt::format("{}, {}, {} {}, {} MiB", printable(d.model), printable(d.isa), d.sm_count,
                     d.host ? "CPUs" : "SMs", d.memory_bytes >> 20);
}

std::string held_out_text(const HeldOut& held_out) {
  return "\n// Shapes of another sweep, which made no row, looked up as a caller would: how they "
         "were found, and\n// on how many the pick was measured. Over these the time lost against "
         "the best measured of each,\n// percent; -1 where there is none.\n" +
         summary_text("kHeldOut", summary(held_out.shapes)) +
         summary_text("kCapturedHeldOut", summary(held_out.captured));
}

}  // namespace muse::tuner
