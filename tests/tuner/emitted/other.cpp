// SPDX-License-Identifier: Apache-2.0
// A second unit of a program that includes an emitted header, twice.
#include "muse_dispatch.h"

const void* other_rows() { return muse::dispatch::kRows; }
