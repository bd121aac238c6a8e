# What runs a command as ranks, without LibTorch.
set(process_sources descendants.cpp keeper.cpp meeting.cpp out_of_memory.cpp refusal.cpp relay.cpp sink.cpp spawn.cpp)
list(TRANSFORM process_sources PREPEND "${PROJECT_SOURCE_DIR}/cli/")
add_library(zero_processes STATIC ${process_sources})
zero_compile(zero_processes)
set_target_properties(zero_processes PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(zero_processes PRIVATE "${PROJECT_SOURCE_DIR}/cli")
