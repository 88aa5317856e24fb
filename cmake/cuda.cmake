# SPDX-License-Identifier: Apache-2.0
# The CUDA target: built where a toolkit from 13.0 on with nvcc is found, left out with a word where
# not. Driver, NVRTC, CUPTI and NVML are loaded at run time, so that one binary runs everywhere.
option(MUSE_CUDA "Build the CUDA target where a CUDA Toolkit 13.0 or newer is found" ON)
set(MUSE_HAS_CUDA OFF)
if(MUSE_CUDA)
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
    message(STATUS "muse-tune: host target only: no CUDA Toolkit here, and none is needed for it")
  elseif(CUDAToolkit_VERSION VERSION_LESS 13.0)
    message(STATUS "muse-tune: host target only: CUDA Toolkit ${CUDAToolkit_VERSION} is older than 13.0")
  else()
    set(MUSE_HAS_CUDA ON)
    message(STATUS "muse-tune: host and CUDA targets, CUDA Toolkit ${CUDAToolkit_VERSION}")
  endif()
else()
  message(STATUS "muse-tune: host target only: MUSE_CUDA is off")
endif()

# muse_cuda: the static runtime and its headers. MUSE_HAS_CUDA is defined with it.
add_library(muse_cuda INTERFACE)
if(MUSE_HAS_CUDA)
  set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  # Machine code from CC 8.0 on; the last one's PTX serves what comes later.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  target_include_directories(muse_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_definitions(muse_cuda INTERFACE MUSE_HAS_CUDA=1)
  target_compile_options(muse_cuda INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo;-Xcompiler=-Wall,-Wextra;-Xptxas=-warn-spills>")
  target_link_libraries(muse_cuda INTERFACE CUDA::cudart_static ${CMAKE_DL_LIBS})
endif()
