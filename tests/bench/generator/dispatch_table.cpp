// SPDX-License-Identifier: Apache-2.0
// Writes a dispatch header of 1,000 made-up rows to the file named on the command line, so that
// muse-bench looks things up in what emit really produces.
#include <cstdio>
#include <fstream>
#include <string>

#include "tuner/emit.h"

namespace {

muse::tuner::DispatchRow row(int64_t batch, int64_t q_len, int64_t window, int64_t context) {
  muse::Shape shape;
  shape.problem.batch = batch;
  shape.problem.q_len = q_len;
  shape.problem.window = window;
  shape.lengths.context = context;
  shape.problem.max_context = muse::default_max_context(shape);
  muse::tuner::DispatchRow row;
  row.shape = shape;
  row.pipeline = "prepare/a + attention/b:splits=" + std::to_string(context / 100) +
                 ",tile_kv=64 + combine/c + gate/d";
  row.median_ns = row.low_ns = row.high_ns = 1000;
  row.base_median_ns = 2000;
  row.status = "winner";
  row.run = 1;
  row.date = "2030-01-01T00:00:00Z";
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: muse-bench-table FILE\n", stderr);
    return 2;
  }
  muse::tuner::DispatchTable table;
  table.base = "prepare/a + attention/b:splits=1,tile_kv=64 + combine/c + gate/d";
  table.regime = "cold";
  table.timer = "host";
  table.device.model = "bench";
  table.source_hash = "0";
  // Contexts below the window, or rows would share a key: 25 * 2 * 2 * 10 rows.
  for (int64_t batch = 1; batch <= 25; ++batch) {
    for (const int64_t q_len : {1, 8}) {
      for (const int64_t window : {0, 2048}) {
        for (int64_t context = 100; context <= 1000; context += 100) {
          table.rows.push_back(row(batch, q_len, window, context));
        }
      }
    }
  }
  std::ofstream file(argv[1], std::ios::binary);
  file << muse::tuner::dispatch_header(table);
  file.close();
  if (!file) {
    std::fprintf(stderr, "muse-bench-table: cannot write %s\n", argv[1]);
    return 3;
  }
  return 0;
}
