// SPDX-License-Identifier: Apache-2.0
// Writes the kernels of the pipelines to the file named on the command line, as emit writes them.
#include <cstdio>
#include <fstream>

#include "tests/device/aot/pipelines.h"
#include "tuner/emit_kernels.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: muse-aot-kernels FILE\n", stderr);
    return 2;
  }
  std::ofstream file(argv[1], std::ios::binary);
  file << muse::tuner::kernels_source(muse::aot::pipelines());
  file.close();
  if (!file) {
    std::fprintf(stderr, "muse-aot-kernels: cannot write %s\n", argv[1]);
    return 3;
  }
  return 0;
}
