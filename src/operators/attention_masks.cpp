// The scores of attentions with a mask: see backwards/attention.h.
#include "backwards/attention.h"

#include "backwards/micro_batch.h"
#include "operators/operator_rule.h"

namespace zero {
namespace {

AttentionScores* attention_here() {
  MicroBatch* const computing = MicroBatch::computing();
  return computing == nullptr ? nullptr : computing->attention();
}

void note_projections(AttentionScores& attention, const OperatorCall& call) {
  if (call.units.empty()) return;
  for (const c10::IValue& value : call.arguments)
    for_each_tensor(value, [&](const c10::TensorImpl* tensor) {
      if (const Unit* const unit = Unit::of(tensor)) attention.uses(unit->slot_of(tensor).name);
    });
}

void follow_scores(OperatorCall& call) {
  if (AttentionScores* const attention = attention_here()) {
    note_projections(*attention, call);
    attention->before(call.op, call.arguments);
  }
  call.proceed();
  if (AttentionScores* const attention = attention_here()) attention->after(call.op, *call.stack);
}

}  // namespace

constexpr OperatorRule operator_rules::attention{.when = OperatorRule::in_16_bits, .around = follow_scores};

}  // namespace zero
