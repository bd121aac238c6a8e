// Settings of a plan that nobody takes: the compiler has to complain of each.
#include "zero/plan.h"

void program(const zero::Plan& plan) {
  plan.fp32();
  plan.bf16();
  plan.precision(zero::Precision::fp16);
  plan.accumulate(2);
  plan.reproducible(true);
  plan.reduce_in(zero::Dtype::bf16);
  plan.gather_in(zero::Wire::fp8);
  plan.keep_gathered(zero::KeptCopy::shard);
  plan.resident_budget(1);
  plan.on(2);
}
