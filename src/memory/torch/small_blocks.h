// Tensors of the CPU that are too small for the arena, laid out by plan where what a thread takes comes again and again
// (memory/planned_blocks.h): in stretches, such as micro-batches, of which the thread says where each begins. Does
// nothing where the arena is not used. With the allocator, in arena_allocator.cpp.
//
// Thread-safety: each thread has its own; blocks may be freed on any.
#pragma once

namespace zero::small_blocks {

// What follows on this thread is another stretch.
void begin();
// What the thread takes from here on is of its stretch, until it pauses.
void resume();
void pause();
// Whether the stretch goes by a plan so far.
bool planned();

}  // namespace zero::small_blocks
