# The planner and the sizes of models, without LibTorch. Objects, so that programs may link them beside the library and
# tests beside its core.
find_package(nlohmann_json REQUIRED)
zero_glob(planner_sources planner/*.cpp)

foreach(target zero_model_sizes zero_planner)
  add_library(${target} OBJECT)
  zero_compile(${target})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE nlohmann_json::nlohmann_json)
endforeach()
target_sources(zero_model_sizes PRIVATE models/fields.cpp models/json.cpp models/llama_config.cpp models/llama_config_json.cpp
                                        models/schema.cpp models/tokens.cpp)
set_source_files_properties(models/schema.cpp PROPERTIES COMPILE_DEFINITIONS "ZERO_VERSION=\"${PROJECT_VERSION}\"")
target_sources(zero_planner PRIVATE ${planner_sources})
