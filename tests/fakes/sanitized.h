// SPDX-License-Identifier: Apache-2.0
// Whether this build is one with a sanitizer: slower, and with a death of its own.
#pragma once

#ifndef __has_feature
#define __has_feature(x) 0
#endif

namespace muse::fakes {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace muse::fakes
