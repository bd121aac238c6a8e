# The tests of ranks on GPUs: built where LibTorch has CUDA, and run where the machine has a GPU. `suites` and `others`
# are those of the simulated accelerator. Where there are fewer than four, threads are ranks in worlds of one rank only,
# and processes share the GPUs.
add_executable(gpu_rank_tests on_device/gpu_surroundings.cpp $<TARGET_OBJECTS:rank_tests>)
target_link_libraries(gpu_rank_tests PRIVATE zero zero_models zero_planner GTest::gtest_main)
target_include_directories(gpu_rank_tests PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/tests")
zero_compile(gpu_rank_tests)

execute_process(COMMAND nvidia-smi --list-gpus OUTPUT_VARIABLE gpus ERROR_QUIET RESULT_VARIABLE no_gpus)
if(no_gpus)
  return()
endif()
string(REGEX MATCHALL "GPU [0-9]+" gpus "${gpus}")
list(LENGTH gpus gpus)
if(gpus GREATER_EQUAL 4)
  zero_add_test(gpu_rank_tests.suites gpu_rank_tests "${suites}:${matrices}:${contracts}-${others}")
else()
  zero_add_test(gpu_rank_tests.alone gpu_rank_tests "All/*On1*:*/1ranks*-${others}")
endif()
foreach(ranks IN ITEMS 1 2 4)
  foreach(precision IN ITEMS fp32 bf16)
    add_test(NAME gpu.compare.${ranks}.${precision}
             COMMAND zero_cli compare --device cuda --model micro --ranks ${ranks} --steps 4 --precision ${precision})
    set_tests_properties(gpu.compare.${ranks}.${precision} PROPERTIES TIMEOUT ${ZERO_TEST_SECONDS})
  endforeach()
endforeach()
