// SPDX-License-Identifier: Apache-2.0
// Writes a dispatch header of 1,000 made-up rows to the file named on the command line, so that
// muse-bench looks things up in what emit really produces.
#include <cstdio>
#include <fstream>

#include "tests/bench/dispatch_grid.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: muse-bench-table FILE\n", stderr);
    return 2;
  }
  std::ofstream file(argv[1], std::ios::binary);
  file << muse::tuner::dispatch_header(muse::bench::dispatch_grid_table(25, 10));
  file.close();
  if (!file) {
    std::fprintf(stderr, "muse-bench-table: cannot write %s\n", argv[1]);
    return 3;
  }
  return 0;
}
