# Torch_DIR: of the PyTorch that the Python package is built for.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/python/packaging/built_for.py"
                OUTPUT_VARIABLE torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(Torch_DIR "${torch_folder}/share/cmake/Torch")
