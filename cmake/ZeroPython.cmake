# The Python package's own part, zero._native, and the program beside it, for the Python that builds them with
# scikit-build-core (pyproject.toml). Tests: label python.
option(ZERO_PYTHON_TESTS "The tests of the Python package" OFF)
find_library(LibTorch_PYTHON torch_python PATHS "${LibTorch_PREFIX}/lib" NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_PYTHON)
if(NOT LibTorch_PYTHON)
  message(FATAL_ERROR "ZERO_PYTHON needs a LibTorch that Python imports, not that of ${LibTorch_PREFIX}: take PyTorch's "
                      "wheel, and leave Torch_DIR empty.")
endif()
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

zero_glob(python_sources python/native/*.cpp)
Python_add_library(zero_python MODULE WITH_SOABI ${python_sources})
zero_compile(zero_python)
# As pybind11 would have it: its types are the module's own.
set_target_properties(zero_python PROPERTIES OUTPUT_NAME _native CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_include_directories(zero_python PRIVATE "${PROJECT_SOURCE_DIR}/python")
target_link_libraries(zero_python PRIVATE zero "${LibTorch_PYTHON}")

configure_file(python/packaging/_built_with.py.in "${PROJECT_BINARY_DIR}/_built_with.py" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/_built_with.py" DESTINATION zero COMPONENT python)
install(TARGETS zero_python LIBRARY DESTINATION zero COMPONENT python)
install(TARGETS zero_cli RUNTIME DESTINATION zero/program COMPONENT python)
install(TARGETS zero_training LIBRARY DESTINATION zero/program COMPONENT python)
install(PROGRAMS python/packaging/zero DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT python)
# PyTorch is beside the package, wherever that is.
set_target_properties(zero_python PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib" INSTALL_RPATH_USE_LINK_PATH OFF)
set_target_properties(zero_training PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib" INSTALL_RPATH_USE_LINK_PATH OFF)

if(ZERO_PYTHON_TESTS)
  add_subdirectory(tests/python)
endif()
