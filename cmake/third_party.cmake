# SPDX-License-Identifier: Apache-2.0
# Third parties, all from the distribution's packages; static where a static library exists, so that
# the binary runs on a machine that has none of them.
find_package(Threads REQUIRED)

# muse_third_party(<target> <header> <library>...): an IMPORTED-like interface target.
function(muse_third_party target header)
  find_path(MUSE_${target}_INCLUDE ${header} REQUIRED)
  add_library(muse_${target} INTERFACE)
  add_library(muse::${target} ALIAS muse_${target})
  target_include_directories(muse_${target} SYSTEM INTERFACE ${MUSE_${target}_INCLUDE})
  foreach(library IN LISTS ARGN)
    find_library(MUSE_${target}_${library} NAMES lib${library}.a ${library} REQUIRED)
    target_link_libraries(muse_${target} INTERFACE ${MUSE_${target}_${library}})
  endforeach()
endfunction()

muse_third_party(sqlite sqlite3.h sqlite3)
target_link_libraries(muse_sqlite INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
muse_third_party(yaml yaml-cpp/yaml.h yaml-cpp)
muse_third_party(cli11 CLI/CLI.hpp)
muse_third_party(fmt fmt/format.h)
target_compile_definitions(muse_fmt INTERFACE FMT_HEADER_ONLY=1)
muse_third_party(json nlohmann/json.hpp)
muse_third_party(xxhash xxhash.h)
target_compile_definitions(muse_xxhash INTERFACE XXH_INLINE_ALL=1)
muse_third_party(expected tl/expected.hpp)
