// SPDX-License-Identifier: Apache-2.0
// Writes the CMakeLists.txt of an emitted folder.
#include "tuner/emit_build.h"

#include <fmt/format.h>

namespace muse::tuner {
std::string build_text(const DispatchTable& table, std::string_view version) {
  return fmt::format(
      R"({}: builds this folder's dispatch table with an installed muse_tune. Do not edit.
#   cmake -S . -B build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build && build/muse_selfcheck
cmake_minimum_required(VERSION 3.25)
project(muse_dispatch LANGUAGES {})
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
find_package(muse_tune {} REQUIRED)

# libmuse_attention.so: the C interface of muse_attention.h with this table, all else hidden.
add_library(muse_attention SHARED)
muse_add_attention(muse_attention DISPATCH_DIR ${{CMAKE_CURRENT_SOURCE_DIR}} INTERFACE_ALONE)

# muse_selfcheck: validates every pipeline of the table on this machine, and times every row.
muse_add_selfcheck(muse_selfcheck DISPATCH_DIR ${{CMAKE_CURRENT_SOURCE_DIR}})
)",
      kBuildMark, table.device.host ? "CXX" : "CXX CUDA", version);
}

}  // namespace muse::tuner
