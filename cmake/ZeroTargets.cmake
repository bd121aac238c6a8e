# zero_glob(<variable> <pattern>...): the files below the source folder, seen again at each build.
macro(zero_glob variable)
  file(GLOB ${variable} CONFIGURE_DEPENDS ${ARGN})
endmacro()

# zero_compile(<target>): how our code is compiled. The same bits everywhere: no fused
# multiply-add that the source does not ask for, no instruction set of the build machine.
function(zero_compile target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  # In a unity build the anonymous names of as many neighbours are distinct (docs/design/decisions.md, 114).
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF UNITY_BUILD_BATCH_SIZE 8)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow $<$<BOOL:${ZERO_WERROR}>:-Werror>
                                           -ffp-contract=off -fno-math-errno)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Guesses of GCC 12's optimizer about std::string and std::sort; the address sanitizer knows better.
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow)
  else()
    target_compile_options(${target} PRIVATE -Wno-unknown-pragmas)  # "GCC ivdep"
  endif()
  if(ZERO_SANITIZE)
    set(sanitize -fsanitize=${ZERO_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_compile_options(${target} PRIVATE ${sanitize})
    target_link_options(${target} PUBLIC -fsanitize=${ZERO_SANITIZE})
  endif()
endfunction()

# zero_program(<target> <source>...): an executable of the repository that uses the models.
function(zero_program target)
  add_executable(${target} ${ARGN})
  zero_compile(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE zero zero_models)
endfunction()

# zero_precompile(<target>): torch/torch.h costs 24 s a file, 10 s precompiled; but a file that needs
# little of it is quicker without. It is compiled once, and past ccache, which would copy 700 MB.
function(zero_precompile target)
  if(NOT ZERO_PCH)
    return()
  endif()
  if(NOT TARGET zero_pch)
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/zero_pch.cpp" CONTENT "")
    add_library(zero_pch OBJECT "${PROJECT_BINARY_DIR}/zero_pch.cpp")
    zero_compile(zero_pch)
    target_link_libraries(zero_pch PRIVATE LibTorch::LibTorch)
    target_precompile_headers(zero_pch PRIVATE <torch/torch.h>)
    set_target_properties(zero_pch PROPERTIES CXX_COMPILER_LAUNCHER "")
  endif()
  target_precompile_headers(${target} REUSE_FROM zero_pch)
  set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "")
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    file(STRINGS ${source} uses REGEX "#include (<torch/(torch|nn|optim)|<ATen/ATen|\".*(harness|lm|llama|torch_optimizers)[.]h\")")
    if(NOT uses)
      set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()
