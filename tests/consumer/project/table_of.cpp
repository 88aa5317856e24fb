// SPDX-License-Identifier: Apache-2.0
// A library that says which table its calls reach, by a name that the build gives.
#include <muse_attention.hpp>

extern "C" __attribute__((visibility("default"))) const char* TABLE_OF() {
  return muse_attention_version();
}
