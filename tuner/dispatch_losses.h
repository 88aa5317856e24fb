// SPDX-License-Identifier: Apache-2.0
// What may answer between the rows of a dispatch table: what each pipeline loses on each row, and
// which pipelines that no row has chosen are worth a kernel there.
#pragma once

#include <string>
#include <vector>

#include "tuner/dispatch_rows.h"
#include "tuner/emit.h"

namespace muse::tuner {

/// Gives the rows of both tables their losses, by every pipeline of the tables that was measured on
/// them; by none for a captured row where it was not measured on each of its shapes.
///
/// With `generalists` further pipelines join, as few as a greedy search finds, so that halfway
/// between neighbouring rows (of one batch, of one context, four of two and two) no measured
/// pipeline is expected to lose kWorthAKernelPct less than the tables' best. Precondition:
/// fill_rows() of the same shapes, rules.
void fill_losses(DispatchTable& table, const std::vector<MeasuredShape>& shapes, bool generalists);

/// Percent of the best time that a pipeline has to save between rows.
inline constexpr double kWorthAKernelPct = 1;

/// The pipelines that no row has chosen and that answer between rows, the base left out; ordered.
std::vector<std::string> generalists(const DispatchTable& table);

}  // namespace muse::tuner
