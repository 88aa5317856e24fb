// SPDX-License-Identifier: Apache-2.0
// A library with an interface of its own beside the C interface.
#include <muse_attention.hpp>

extern "C" __attribute__((visibility("default"))) int serving_abi() { return muse_attention_abi(); }
