// SPDX-License-Identifier: Apache-2.0
// Prints the pipeline of every row of an emitted header, by batch.
#include <cstdio>

#include "muse_dispatch.h"

int main() {
  for (int i = 0; i < muse::dispatch::kRowCount; ++i) {
    std::puts(muse::dispatch::info(muse::dispatch::kRows[i].pipeline).key);
  }
}
