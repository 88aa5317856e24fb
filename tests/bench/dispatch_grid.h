// SPDX-License-Identifier: Apache-2.0
// Made-up rows of a dispatch table, as many as are wanted, for lookups to be timed in.
#pragma once

#include <string>
#include <vector>

#include "tuner/emit.h"

namespace muse::bench {

/// Pipelines of a made-up table: as many as one for four structures has.
inline constexpr int kGridPipelines = 30;

inline std::string grid_pipeline(int64_t number) {
  return "prepare/a + attention/b:splits=" + std::to_string(number) +
         ",tile_kv=64 + combine/c + gate/d";
}

/// What a pipeline loses on a row: none on that which has chosen it, elsewhere this or that.
inline uint16_t grid_loss(int64_t pipeline, int64_t step) {
  return static_cast<uint16_t>(pipeline == step % 10 ? 0 : 1 + pipeline * 7919 * step % 3000);
}

/// Windowed layers and others, one and eight query tokens, batches from 1, contexts in steps of 10
/// below the window (or rows would share a key): 4 * batches * contexts rows.
inline std::vector<tuner::DispatchRow> dispatch_grid(int64_t batches, int64_t contexts) {
  std::vector<tuner::DispatchRow> rows;
  for (const int64_t window : {0, 2048}) {
    for (const int64_t q_len : {1, 8}) {
      for (int64_t batch = 1; batch <= batches; ++batch) {
        for (int64_t step = 1; step <= contexts; ++step) {
          tuner::DispatchRow row;
          row.shape.problem.batch = batch;
          row.shape.problem.q_len = q_len;
          row.shape.problem.window = window;
          row.shape.lengths.context = 10 * step;
          row.shape.problem.max_context = default_max_context(row.shape);
          row.pipeline = grid_pipeline(step % 10);
          for (int p = 0; p < kGridPipelines; ++p)
            row.losses[grid_pipeline(p)] = grid_loss(p, step);
          row.median_ns = row.low_ns = row.high_ns = 1000;
          row.base_median_ns = 2000;
          row.status = "winner";
          row.run = 1;
          row.date = "2030-01-01T00:00:00Z";
          rows.push_back(std::move(row));
        }
      }
    }
  }
  return rows;
}

/// The table that emit writes of them.
inline tuner::DispatchTable dispatch_grid_table(int64_t batches, int64_t contexts) {
  tuner::DispatchTable table;
  table.base = grid_pipeline(1);
  table.regime = "cold";
  table.timer = "host";
  table.device.model = "bench";
  table.source_hash = "0";
  table.rules = tuner::dispatch_rules({{"batch", "log2"}, {"context", "log2"}}, 1.6);
  table.rows = dispatch_grid(batches, contexts);
  return table;
}

}  // namespace muse::bench
