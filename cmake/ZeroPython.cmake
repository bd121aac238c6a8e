# The Python package zero, in package/ of the build folder, for the Python whose LibTorch this build is of. Tests: label
# python.
find_library(LibTorch_PYTHON torch_python PATHS "${LibTorch_PREFIX}/lib" NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_PYTHON)
if(NOT LibTorch_PYTHON)
  message(FATAL_ERROR "ZERO_PYTHON needs a LibTorch that Python imports, not that of ${LibTorch_PREFIX}: take PyTorch's "
                      "wheel, and leave Torch_DIR empty.")
endif()

# site-packages/torch is that of an environment, or of a Python below the same prefix.
cmake_path(SET python_prefix NORMALIZE "${LibTorch_PREFIX}/../../../..")
find_program(ZERO_PYTHON_EXECUTABLE NAMES python3 HINTS "${python_prefix}/bin")
mark_as_advanced(ZERO_PYTHON_EXECUTABLE)
set(Python_EXECUTABLE "${ZERO_PYTHON_EXECUTABLE}")
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

set(ZERO_PYTHON_PACKAGE "${PROJECT_BINARY_DIR}/package/zero")
zero_glob(python_sources python/native/*.cpp)
Python_add_library(zero_python MODULE WITH_SOABI ${python_sources})
zero_compile(zero_python)
# As pybind11 would have it: its types are the module's own.
set_target_properties(zero_python PROPERTIES OUTPUT_NAME _native LIBRARY_OUTPUT_DIRECTORY "${ZERO_PYTHON_PACKAGE}"
                                             CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_include_directories(zero_python PRIVATE "${PROJECT_SOURCE_DIR}/python")
target_link_libraries(zero_python PRIVATE zero "${LibTorch_PYTHON}")

# What is Python's own, beside it.
zero_glob(python_files python/zero/*.py python/zero/*/*.py python/zero/*.pyi python/zero/py.typed)
foreach(file IN LISTS python_files)
  cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/python/zero" OUTPUT_VARIABLE name)
  add_custom_command(OUTPUT "${ZERO_PYTHON_PACKAGE}/${name}" DEPENDS "${file}"
                     COMMAND ${CMAKE_COMMAND} -E copy "${file}" "${ZERO_PYTHON_PACKAGE}/${name}" VERBATIM)
  list(APPEND package_files "${ZERO_PYTHON_PACKAGE}/${name}")
endforeach()
add_custom_target(zero_python_package ALL DEPENDS zero_python ${package_files})

if(PROJECT_IS_TOP_LEVEL)
  add_subdirectory(tests/python)
endif()
