# The tests of ranks once more: over what connects processes, and as on lesser processors. Of such a repetition one test
# in several runs each time, and all of them with `make test-long`.

# zero_repeat(<name> <filter> <shard> <shards> <variable>=<value>...): `rank_tests.<name>` is this shard of the tests that
# the filter names; `rank_tests.<name>.<n>`, in a long test, the others. A shard of -1 is none.
function(zero_repeat name filter shard shards)
  math(EXPR last "${shards} - 1")
  foreach(each RANGE ${last})
    set(test rank_tests.${name})
    set(long)
    if(NOT each EQUAL shard)
      string(APPEND test ".${each}")
      set(long LONG)
    endif()
    zero_add_test(${test} rank_tests "${filter}" ${long} GTEST_TOTAL_SHARDS=${shards} GTEST_SHARD_INDEX=${each} ${ARGN})
    set_tests_properties(${test} PROPERTIES COST 800)
  endforeach()
endfunction()

# The tests compare bits and bytes, whatever the transport. Not what each optimizer and precision computes, of which a
# transport does not hear. Every fourth test goes by shared memory, every fourth by streams, and every sixteenth by Gloo,
# where each takes three times as long.
set(heard_of "-Gloo*:Float8*:*Optimizer*:*StatesByName*:*LossScales*:SmallUpdates*:*/Programs.*")
zero_repeat(over_shared "${heard_of}" 0 4 ZERO_TEST_TRANSPORT=shared)
zero_repeat(over_tcp "${heard_of}" 1 4 ZERO_TEST_TRANSPORT=tcp)
zero_repeat(over_gloo "${heard_of}" 2 16 ZERO_TEST_TRANSPORT=gloo)
# Each of these is up to 24 runs.
zero_repeat(programs_over_shared "*/Programs.*" 0 16 ZERO_TEST_TRANSPORT=shared)
zero_repeat(programs_over_tcp "*/Programs.*" 4 16 ZERO_TEST_TRANSPORT=tcp)
zero_repeat(programs_over_gloo "*/Programs.*" 5 16 ZERO_TEST_TRANSPORT=gloo)

# With the kernels that LibTorch and oneDNN have for lesser processors. Ours of each instruction set are compared in
# simd_test, and under the sanitizers all are those of the least processor.
set(operators "Modules*:LibTorchsModules/*:Recurrent/*:Parameters*:*Llama*:Float8*:Windows*:FullPrecision*:GradientsIn16Bits*:Evaluation*:Frozen*")
set(matrices "All/Settings.*:*Optimizers*:*Plans*:*Splits*")
set(least ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2)
set(avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2)
zero_repeat(on_least_processor.operators "${operators}" 0 1 ${least})
zero_repeat(on_least_processor.matrices "${matrices}" 0 4 ${least})
zero_repeat(on_avx2.operators "${operators}" -1 1 ${avx2})
zero_repeat(on_avx2.matrices "${matrices}" -1 1 ${avx2})
