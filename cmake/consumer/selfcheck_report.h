// SPDX-License-Identifier: Apache-2.0
// What muse_selfcheck asked of its table, what came of it, and how that is told.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "variants/reference/step.h"

namespace selfcheck {

/// What is asked of the table.
struct Question {
  std::string shape;     ///< key
  bool any_context;      ///< as a graph that is replayed at every length
  std::string pipeline;  ///< that the row under this key names; empty where no row is asked for
};

struct Answer {
  Question question;
  bool asked = false;  ///< the table was; a step that is too large is not asked for
  std::string pipeline, match, guard, why, passed_over;  ///< passed_over: why it was not run
  double expected_us = NAN, median_us = NAN, least_us = NAN;
  muse::reference::StepVerdict verdict;
};

/// By which clocks the times are, and the columns.
void print_heading();
void print_line(const Answer& answer);

/// The sums and what is missing, or the whole document. Whether all is well: something was right,
/// nothing was wrong, and on a device that the table is for every row was answered by its own
/// pipeline and every pipeline that a row names was run.
bool tell(bool json, const std::vector<Answer>& answers);

}  // namespace selfcheck
