# What runs a command as ranks, without LibTorch.
zero_glob(process_sources cli/processes/*.cpp)
add_library(zero_processes STATIC ${process_sources})
zero_compile(zero_processes)
set_target_properties(zero_processes PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(zero_processes PRIVATE "${PROJECT_SOURCE_DIR}")
