// SPDX-License-Identifier: Apache-2.0
// How long the rest of a sweep takes, judged by the like of it that is done. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace muse::tuner {

/// A sweep is a row of parts, each of a kind (a span). What a part takes in time and in steps
/// (validations, blocks of rounds) is learnt from those of its kind that are done. Parts that took
/// no step were known before: they cost nothing, and say nothing about the others.
class Pace {
 public:
  /// One more part of this kind will come.
  void expect(const std::string& kind) { ++kinds_[kind].left; }
  /// The next part begins; the one before has ended.
  void begin(const std::string& kind, double now_s);
  void step() { ++steps_; }
  void end(double now_s);
  /// nullopt as long as one of the kinds to come is not known.
  std::optional<double> left_s(double now_s) const;

 private:
  struct Kind {
    int left = 0;   ///< parts that have not begun
    int known = 0;  ///< parts that are done and took steps
    double seconds = 0, steps = 0;
    double mean_s() const { return seconds / known; }
    double mean_steps() const { return steps / known; }
  };
  std::map<std::string, Kind> kinds_;
  std::string running_;  ///< kind; empty between parts
  double began_s_ = 0;
  int steps_ = 0;
};

}  // namespace muse::tuner
