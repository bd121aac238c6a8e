// Which operators do what to tensors without values.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>

namespace zero::deferred_operators {

using Handle = c10::OperatorHandle;

// Memory alone.
bool only_allocates(const Handle& op);
bool random(const Handle& op);
// It consists of others, which are noted one by one: so what is random draws from a generator that it is given, and
// what fills memory is two operators, of which the second can do it in any memory.
bool taken_apart(const Handle& op);
// Writes all of its first argument and reads nothing of it.
bool overwrites(const Handle& op);
bool copies(const Handle& op);
bool is_written(const Handle& op, std::size_t argument);
// Its results are views, for which it needs no values, or its arguments with other sizes.
bool looks_only(const Handle& op);
bool gives_tensors(const Handle& op);
// Of tensors that tell the shape of its results, or are a number.
bool needs_values(const Handle& op);

}  // namespace zero::deferred_operators
