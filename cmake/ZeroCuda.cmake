# zero_cuda: the kernels of CUDA devices, as objects. The same bits as on the host: no fused multiply-add that the
# source does not ask for.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
enable_language(CUDA)
zero_glob(cuda_sources src/device/cuda/*.cu)
add_library(zero_cuda OBJECT ${cuda_sources})
target_compile_features(zero_cuda PRIVATE cuda_std_20)
set_target_properties(zero_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_EXTENSIONS OFF UNITY_BUILD OFF)
target_include_directories(zero_cuda PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
target_compile_options(zero_cuda PRIVATE --fmad=false --expt-relaxed-constexpr
                                         $<$<BOOL:${ZERO_WERROR}>:--Werror=all-warnings>
                                         -Xcompiler=-Wall,-Wextra,-ffp-contract=off,-fno-math-errno)
