// SPDX-License-Identifier: Apache-2.0
// Means over the parts that are done.
#include "tuner/pace.h"

#include <algorithm>

namespace muse::tuner {

void Pace::begin(const std::string& kind, double now_s) {
  end(now_s);
  Kind& mine = kinds_[kind];
  mine.left = std::max(0, mine.left - 1);
  running_ = kind;
  began_s_ = now_s;
  steps_ = 0;
}

void Pace::end(double now_s) {
  if (!running_.empty() && steps_ > 0) {
    Kind& kind = kinds_[running_];
    ++kind.known;
    kind.seconds += now_s - began_s_;
    kind.steps += steps_;
  }
  running_.clear();
}

std::optional<double> Pace::left_s(double now_s) const {
  double left = 0;
  for (const auto& [name, kind] : kinds_) {
    if (kind.left == 0) continue;
    if (kind.known == 0) return std::nullopt;
    left += kind.left * kind.mean_s();
  }
  if (running_.empty()) return left;
  const Kind& kind = kinds_.at(running_);
  if (kind.known == 0) return std::nullopt;
  if (steps_ == 0) return left + std::max(0.0, kind.mean_s() - (now_s - began_s_));
  // At the pace of its own steps, as far as they tell: it may take more of them than others did.
  const double done = std::min(1.0, steps_ / kind.mean_steps());
  const double own_s = (now_s - began_s_) * kind.mean_steps() / steps_;
  return left + (1 - done) * (done * own_s + (1 - done) * kind.mean_s());
}

}  // namespace muse::tuner
