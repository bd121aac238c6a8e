// A setting of a plan that nobody takes: CALL says which. The compiler has to complain.
#include "zero/plan.h"

void program(const zero::Plan& plan) {
  plan.CALL;
}
