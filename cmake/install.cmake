# SPDX-License-Identifier: Apache-2.0
# What an installation has: the library that production links, with what compiles an emitted table
# beside it, and muse-tune itself. One component; nothing of it needs the packages that the build does.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(muse_share ${CMAKE_INSTALL_DATADIR}/muse_tune)
set(muse_root ${CMAKE_INSTALL_INCLUDEDIR}/muse_tune)
set(muse_package ${CMAKE_INSTALL_LIBDIR}/cmake/muse_tune)
set(consumer ${CMAKE_SOURCE_DIR}/cmake/consumer)

# A shared library that takes the archive in shows the C interface and nothing else.
set_target_properties(muse_variants muse_c_interface PROPERTIES CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON)

# What the library is built with, for emitted tables to be held against.
add_executable(muse-build-variants ${CMAKE_SOURCE_DIR}/cmake/build_variants.cpp)
target_link_libraries(muse-build-variants PRIVATE muse_options muse_variants)
set(build_variants ${CMAKE_BINARY_DIR}/generated/variants/runtime/build_variants.h)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/generated/variants/runtime)
add_custom_command(OUTPUT ${build_variants} COMMAND muse-build-variants ${build_variants}
  DEPENDS muse-build-variants COMMENT "Listing the variants of the library" VERBATIM)
add_custom_target(muse_build_variants ALL DEPENDS ${build_variants})

install(TARGETS muse-tune RUNTIME COMPONENT runtime)
install(TARGETS muse_attention ARCHIVE COMPONENT runtime)
install(FILES ${CMAKE_SOURCE_DIR}/variants/runtime/muse_attention.h
  ${CMAKE_SOURCE_DIR}/variants/runtime/muse_attention.hpp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT runtime)

# What table.cpp, selfcheck.cpp and muse_kernels.cu include, by the same paths as in the sources.
set(headers numerics.h random.h buffers.h problem.h reference/step.h runtime/dispatch_lookup.h
  runtime/linked_table.h)
foreach(header IN LISTS headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${CMAKE_SOURCE_DIR}/variants/${header}
    DESTINATION ${muse_root}/variants/${folder} COMPONENT runtime)
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/profiler/host_cache.h DESTINATION ${muse_root}/profiler
  COMPONENT runtime)
install(FILES ${build_variants} DESTINATION ${muse_root}/variants/runtime COMPONENT runtime)
foreach(folder prepare attention combine gate fused device)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/variants/${folder} DESTINATION ${muse_root}/variants
    COMPONENT runtime FILES_MATCHING PATTERN "*.cuh")
endforeach()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/variants/device DESTINATION ${muse_root}/variants
  COMPONENT runtime FILES_MATCHING PATTERN "*.h" PATTERN "*contract.h" EXCLUDE)

install(FILES ${consumer}/table.cpp ${consumer}/selfcheck.cpp ${consumer}/selfcheck_machine.h
  ${consumer}/selfcheck_report.h ${consumer}/selfcheck_report.cpp ${consumer}/selfcheck_host.cpp
  ${consumer}/selfcheck_cuda.cu ${consumer}/muse_attention.map
  ${CMAKE_SOURCE_DIR}/profiler/host_cache.cpp
  DESTINATION ${muse_share} COMPONENT runtime)
install(FILES ${CMAKE_SOURCE_DIR}/variants/runtime/python/muse_attention.py
  DESTINATION ${muse_share}/python COMPONENT runtime OPTIONAL)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

# find_package(muse_tune) and pkg-config: by paths from their own place, so that a tree can be moved.
configure_package_config_file(${consumer}/muse_tuneConfig.cmake.in
  ${CMAKE_BINARY_DIR}/package/muse_tuneConfig.cmake INSTALL_DESTINATION ${muse_package}
  PATH_VARS muse_share muse_root CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/muse_tuneConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/muse_tuneConfig.cmake
  ${CMAKE_BINARY_DIR}/package/muse_tuneConfigVersion.cmake ${consumer}/muse_add_attention.cmake
  DESTINATION ${muse_package} COMPONENT runtime)
file(RELATIVE_PATH muse_pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" muse_pc_prefix ${muse_pc_prefix})
configure_file(${consumer}/muse_attention.pc.in ${CMAKE_BINARY_DIR}/package/muse_attention.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/muse_attention.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT runtime)

# `cpack -G DEB` in the build folder. Everything is linked statically but libc and libm.
set(CPACK_PACKAGE_NAME muse-tune)
set(CPACK_PACKAGE_VENDOR "muse-tune contributors")
set(CPACK_PACKAGE_CONTACT "muse-tune contributors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL runtime)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION devel)
execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE libc ERROR_QUIET
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(libc MATCHES "^glibc ([0-9.]+)$")
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${CMAKE_MATCH_1})")
endif()
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, cmake")
include(CPack)
