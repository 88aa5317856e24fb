// SPDX-License-Identifier: Apache-2.0
// The sections of the HTML report, each with an anchor.
#pragma once

#include "reports/html.h"
#include "reports/run_data.h"

namespace muse::reports {

/// A table or data block shows every trial up to this many; above it the best kRowsBeyond.
inline constexpr size_t kRowLimit = 2000;
inline constexpr size_t kRowsBeyond = 500;
size_t rows_shown(const RunData& data);

void verdict_section(Html& html, const RunData& data);
void winners_section(Html& html, const RunData& data);
void candidates_section(Html& html, const RunData& data);
void failures_section(Html& html, const RunData& data);
void method_section(Html& html, const RunData& data);
void glossary_section(Html& html);

}  // namespace muse::reports
