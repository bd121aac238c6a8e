# LibTorch as one imported target, LibTorch::LibTorch, found where find_package(Torch) would find it
# (Torch_DIR, CMAKE_PREFIX_PATH). Torch's own package stops where a CUDA wheel meets a machine without
# the CUDA toolkit; here such a machine links the wheel and leaves out CUDA and NCCL.
#   LibTorch_VERSION, LibTorch_MINOR (such as 2.13), LibTorch_INCLUDE_DIR, LibTorch_CUDA, LibTorch_NCCL
find_file(LibTorch_CONFIG TorchConfig.cmake HINTS "${Torch_DIR}" "$ENV{Torch_DIR}" PATH_SUFFIXES share/cmake/Torch)
mark_as_advanced(LibTorch_CONFIG)
if(LibTorch_CONFIG)
  cmake_path(GET LibTorch_CONFIG PARENT_PATH LibTorch_folder)
  cmake_path(SET LibTorch_PREFIX NORMALIZE "${LibTorch_folder}/../../..")
  file(STRINGS "${LibTorch_folder}/TorchConfigVersion.cmake" LibTorch_VERSION REGEX "^set\\(PACKAGE_VERSION \"")
  string(REGEX MATCH "[0-9]+\\.[0-9]+(\\.[0-9]+)?" LibTorch_VERSION "${LibTorch_VERSION}")
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" LibTorch_MINOR "${LibTorch_VERSION}")
  cmake_path(APPEND LibTorch_PREFIX include OUTPUT_VARIABLE LibTorch_INCLUDE_DIR)
  cmake_path(APPEND LibTorch_PREFIX lib OUTPUT_VARIABLE LibTorch_folder)
  foreach(name torch torch_cpu c10 torch_cuda c10_cuda)
    find_library(LibTorch_${name} ${name} PATHS "${LibTorch_folder}" NO_DEFAULT_PATH)
    mark_as_advanced(LibTorch_${name})
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_CONFIG LibTorch_INCLUDE_DIR LibTorch_torch LibTorch_torch_cpu LibTorch_c10
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "run scripts/setup.sh, or set Torch_DIR to the folder of TorchConfig.cmake")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  set(LibTorch_CUDA OFF)
  set(LibTorch_NCCL OFF)
  if(LibTorch_torch_cuda)
    find_package(CUDAToolkit QUIET)
    if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
      set(LibTorch_CUDA ON)
    endif()
    file(GLOB LibTorch_wheels "${LibTorch_PREFIX}/../nvidia/*/include")  # of libraries that the toolkit may lack
    find_path(LibTorch_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${LibTorch_wheels})
    mark_as_advanced(LibTorch_NCCL_INCLUDE_DIR)
    if(LibTorch_CUDA AND LibTorch_NCCL_INCLUDE_DIR)
      set(LibTorch_NCCL ON)
    endif()
  endif()

  # Nothing calls libtorch.so, yet it is what loads the operators of the CPU and of CUDA.
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM
                             INTERFACE "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  target_compile_definitions(LibTorch::LibTorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(LibTorch::LibTorch INTERFACE -Wl,--no-as-needed "${LibTorch_torch}" -Wl,--as-needed
                                                     "${LibTorch_torch_cpu}" "${LibTorch_c10}")
  if(LibTorch_CUDA)
    target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${LibTorch_wheels})
    target_link_libraries(LibTorch::LibTorch INTERFACE -Wl,--no-as-needed "${LibTorch_torch_cuda}" -Wl,--as-needed
                                                       "${LibTorch_c10_cuda}" CUDA::cudart)
  endif()
  if(LibTorch_NCCL)
    target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE "${LibTorch_NCCL_INCLUDE_DIR}")
    target_compile_definitions(LibTorch::LibTorch INTERFACE USE_C10D_NCCL)
  endif()
endif()
