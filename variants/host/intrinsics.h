// SPDX-License-Identifier: Apache-2.0
// immintrin.h without the false alarms of g++ 12, which takes the "undefined" operands inside many
// AVX-512 intrinsics for uninitialised variables.
#pragma once

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // __x86_64__
