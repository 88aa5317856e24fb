# SPDX-License-Identifier: Apache-2.0
# Functions of the installed package: an emitted dispatch table as part of a target.

# What the C interface is made of: a shared library takes all of it out of the archive.
set(muse_tune_INTERFACE
  muse_attention_problem_init muse_attention_plan_create muse_attention_plan_destroy
  muse_attention_workspace_bytes muse_attention_workspace_init muse_attention_run
  muse_attention_explain muse_attention_version muse_attention_abi muse_attention_status_text
  muse_attention_last_error)

# The object libraries of the table in a folder, made once a project.
function(_muse_tune_table objects on_gpu dir)
  cmake_path(ABSOLUTE_PATH dir BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
  foreach(file muse_dispatch.h muse_kernels.cu muse_dispatch.json)
    if(NOT EXISTS ${dir}/${file})
      message(FATAL_ERROR "muse_tune: ${dir} has no ${file}: `muse-tune emit --out ${dir}` writes "
        "a dispatch table there")
    endif()
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${dir}/muse_dispatch.json
    ${dir}/muse_dispatch.h)
  file(READ ${dir}/muse_dispatch.json evidence)
  foreach(field "schema" "id" "device;host" "device;isa" "device;model")
    string(MAKE_C_IDENTIFIER "${field}" name)
    string(JSON ${name} ERROR_VARIABLE error GET "${evidence}" ${field})
    if(error)
      message(FATAL_ERROR "muse_tune: ${dir}/muse_dispatch.json: ${error}: emit again")
    endif()
  endforeach()
  if(NOT schema STREQUAL "muse.dispatch")
    message(FATAL_ERROR "muse_tune: ${dir}/muse_dispatch.json is no dispatch table: emit again")
  endif()
  # muse_kernels.cu is held against the header where it is compiled.
  file(STRINGS ${dir}/muse_dispatch.h header_id REGEX "^#define MUSE_DISPATCH_TABLE_" LIMIT_COUNT 1)
  if(NOT header_id STREQUAL "#define MUSE_DISPATCH_TABLE_${id}")
    message(FATAL_ERROR "muse_tune: muse_dispatch.json and muse_dispatch.h in ${dir} are of different "
      "emits: take all files of a folder from one `muse-tune emit`")
  endif()

  string(SHA1 hash ${dir})
  string(SUBSTRING ${hash} 0 8 hash)
  set(table muse_tune_table_${hash})
  set(kernels muse_tune_kernels_${hash})
  if(NOT TARGET ${table})
    add_library(${table} OBJECT ${muse_tune_SHARE}/table.cpp)
    target_compile_features(${table} PRIVATE cxx_std_17)
    target_include_directories(${table} PRIVATE ${dir} ${muse_tune_ROOT})
    set_target_properties(${table} PROPERTIES POSITION_INDEPENDENT_CODE ON
      CXX_VISIBILITY_PRESET hidden)
    if(NOT device_host)
      _muse_tune_kernels(${kernels} ${dir} "${device_model}" "${device_isa}")
    endif()
  endif()
  if(device_host)
    set(${objects} $<TARGET_OBJECTS:${table}> PARENT_SCOPE)
    set(${on_gpu} OFF PARENT_SCOPE)
  else()
    set(${objects} $<TARGET_OBJECTS:${table}> $<TARGET_OBJECTS:${kernels}> PARENT_SCOPE)
    set(${on_gpu} ON PARENT_SCOPE)
  endif()
endfunction()

# The kernels of a GPU's table, for its own architecture alone.
function(_muse_tune_kernels kernels dir model isa)
  if(NOT muse_tune_HAS_CUDA)
    message(FATAL_ERROR "muse_tune: the table in ${dir} is for a GPU (${model}, ${isa}), and this "
      "muse_tune was built without the CUDA target: build and install it where a CUDA Toolkit 13.0 "
      "or newer is found")
  endif()
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(NOT CUDA IN_LIST languages)
    message(FATAL_ERROR "muse_tune: the table in ${dir} is for a GPU (${model}, ${isa}): CUDA has "
      "to be enabled before muse_add_attention, by enable_language(CUDA) or "
      "project(... LANGUAGES CXX CUDA)")
  endif()
  string(REGEX MATCH "^sm_([0-9]+a?)$" known ${isa})
  if(NOT known)
    message(FATAL_ERROR "muse_tune: ${dir}/muse_dispatch.json: '${isa}' is no architecture: emit "
      "again")
  endif()
  add_library(${kernels} OBJECT ${dir}/muse_kernels.cu)
  target_include_directories(${kernels} PRIVATE ${muse_tune_ROOT})
  set_target_properties(${kernels} PROPERTIES CUDA_ARCHITECTURES ${CMAKE_MATCH_1}
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON
    CUDA_VISIBILITY_PRESET hidden)
  target_compile_options(${kernels} PRIVATE -lineinfo -Xptxas=-warn-spills)
endfunction()

# muse_add_attention(<target> DISPATCH_DIR <dir> [INTERFACE_ALONE])
#
# Makes muse_attention.h and muse_attention.hpp work in the target (an executable or a library) by
# the dispatch table that emit wrote to the folder. A shared library exports the C interface; with
# INTERFACE_ALONE that and nothing else.
#
# The own calls of a shared library that this was called for reach its own table, also where the
# program has another one (functions alone are bound so: a program may hold copies of its data). Calls
# from elsewhere are bound by the order of linking: all of them reach the first library's table. Two
# tables in one program want libraries with wrapper functions of their own, or dlopen with RTLD_LOCAL
# and the functions by dlsym.
function(muse_add_attention target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INTERFACE_ALONE" "DISPATCH_DIR" "")
  if(NOT TARGET ${target} OR NOT arg_DISPATCH_DIR OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "muse_tune: muse_add_attention(<target> DISPATCH_DIR <dir> "
      "[INTERFACE_ALONE]): ${target} has to be a target, dir a folder that emit wrote")
  endif()
  _muse_tune_table(objects on_gpu ${arg_DISPATCH_DIR})
  set(libraries muse::attention)
  if(on_gpu)
    find_package(CUDAToolkit REQUIRED)
    list(APPEND libraries CUDA::cudart_static)
  endif()
  get_target_property(type ${target} TYPE)
  if(type MATCHES "^(STATIC|OBJECT|INTERFACE)_LIBRARY$")
    # Whoever links it into a program or a shared library takes the table with it.
    target_sources(${target} INTERFACE ${objects})
    target_link_libraries(${target} INTERFACE ${libraries})
    if(NOT type STREQUAL "INTERFACE_LIBRARY")
      target_include_directories(${target} PRIVATE ${muse_tune_INCLUDE})
    endif()
    return()
  endif()
  target_sources(${target} PRIVATE ${objects})
  target_link_libraries(${target} PRIVATE ${libraries})
  set_property(TARGET ${target} PROPERTY LINKER_LANGUAGE CXX)  # the table is C++
  if(type MATCHES "^(SHARED|MODULE)_LIBRARY$")
    target_include_directories(${target} INTERFACE ${muse_tune_INCLUDE})
    list(TRANSFORM muse_tune_INTERFACE PREPEND "LINKER:-u," OUTPUT_VARIABLE exported)
    target_link_options(${target} PRIVATE ${exported} LINKER:-Bsymbolic-functions
      LINKER:--exclude-libs,libcudart_static.a)
    if(arg_INTERFACE_ALONE)
      target_link_options(${target} PRIVATE
        LINKER:--version-script=${muse_tune_SHARE}/muse_attention.map)
    endif()
  endif()
endfunction()

# muse_add_selfcheck(<target> DISPATCH_DIR <dir>)
#
# A program that validates the table in the folder on the machine it runs on, and times its rows.
function(muse_add_selfcheck target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DISPATCH_DIR" "")
  if(NOT arg_DISPATCH_DIR OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "muse_tune: muse_add_selfcheck(<target> DISPATCH_DIR <dir>)")
  endif()
  add_executable(${target} ${muse_tune_SHARE}/selfcheck.cpp
    ${muse_tune_SHARE}/selfcheck_report.cpp)
  muse_add_attention(${target} DISPATCH_DIR ${arg_DISPATCH_DIR})
  target_include_directories(${target} PRIVATE ${arg_DISPATCH_DIR} ${muse_tune_ROOT})
  target_compile_features(${target} PRIVATE cxx_std_20)
  _muse_tune_table(objects on_gpu ${arg_DISPATCH_DIR})
  if(on_gpu)
    target_sources(${target} PRIVATE ${muse_tune_SHARE}/selfcheck_cuda.cu)
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES 80-virtual CUDA_STANDARD 17
      CUDA_STANDARD_REQUIRED ON)
  else()
    target_sources(${target} PRIVATE ${muse_tune_SHARE}/selfcheck_host.cpp
      ${muse_tune_SHARE}/host_cache.cpp)
  endif()
endfunction()
