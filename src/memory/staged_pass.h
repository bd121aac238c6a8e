// Bytes of blocks on their way to where they are computed with, and back: in place where their blocks are addressable,
// else through buffers of constant number and size, read ahead and written behind. No torch.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "memory/block.h"
#include "memory/store.h"
#include "partition/staging.h"

namespace zero {

// What becomes of bytes that are not in place.
enum class Access : std::uint8_t {
  update,  // brought, changed and taken back
  read,    // brought
  write,   // written as a whole and taken back
};

// Bytes [at, at + bytes) of a block; null: of none.
struct BlockPart {
  Block* block = nullptr;
  std::int64_t at = 0;
  std::int64_t bytes = 0;
  Access way = Access::update;
};

inline StagingShape staging_for(const Store& store, std::int64_t arrays = StagingShape::kArrays) {
  return {store.transfer(), arrays, store.page()};
}

// The buffers of a store that is not addressable, kept from one passage to the next; taken when they are first needed.
class Staging {
 public:
  static constexpr std::size_t kBuffers = StagingShape::kBuffers;

  // From `memory`, which is that of `device`, as a View has it: where arrays are computed with. At most `shape.arrays`
  // arrays, as wide as the widest element, are together in a buffer.
  Staging(Store& memory, const StagingShape& shape, int device = Block::kHost)
      : memory_(memory), shape_(shape), device_(device) {}

  const StagingShape& shape() const { return shape_; }
  // Whether what is computed finds the part where it lies; null lies everywhere.
  bool reachable(const BlockPart& part) const { return part.block == nullptr || part.block->lies_on(device_); }
  // Begins with a page.
  char* buffer(std::size_t which);

 private:
  Store& memory_;
  StagingShape shape_;
  int device_;
  std::array<Block, kBuffers> buffers_;
};

// One at a time on the same Staging. One thread.
//
// What is brought together is a turn, which has a buffer: while one turn is worked on, the next one is read and the one
// before is written. A turn is one pass(), or, `joined`, as many as a buffer has room for, which are brought when the
// next one has none: what lies side by side in a block goes in one operation then, however many parts it is.
class StagedPass {
 public:
  enum class Turns : std::uint8_t { each, joined };

  explicit StagedPass(Staging& staging, Turns turns = Turns::each)
      : staging_(staging), joins_(turns == Turns::joined) {}
  ~StagedPass();  // waits for what is under way, and leaves undone what was not
  StagedPass(const StagedPass&) = delete;
  StagedPass& operator=(const StagedPass&) = delete;

  // Where each part lies while it is worked on, aligned to 64 bytes or as it lies in its block; null for none.
  using Work = std::function<void(std::span<void* const> arrays)>;
  static constexpr std::size_t kParts = 32;  // of one pass(), at most
  // Does the work on these parts: at once, in place, where all of their blocks are addressable, else by the end of
  // finish(). Parts of one passage must not overlap. Throws what reading, writing or the work throws, also that of
  // parts before these; then it is over.
  template <class Call>
  void pass(std::span<const BlockPart> parts, Call&& work) {
    std::array<void*, kParts> arrays;
    if (!in_place(parts, arrays)) return begin(parts, std::forward<Call>(work));
    work(std::span<void* const>(arrays.data(), parts.size()));
  }
  // Calls when the work of all parts so far is done; what it wrote may still be on its way to its blocks.
  void then(std::function<void()> call);
  void finish();

  const Staging& staging() const { return staging_; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  // Where a part is worked on: so far from the beginning of an operation's bytes, or of none, in place.
  struct Array {
    std::size_t operation = kNone;
    std::int64_t at = 0;
    void* place = nullptr;
  };
  // A pass().
  struct Job {
    std::vector<Array> arrays;
    Work work;
  };
  struct Turn {
    std::vector<BlockPart> operations;
    std::int64_t room = 0;  // that they take, at most
    std::vector<Job> jobs;  // while they are to be done
    std::function<void()> then;
    std::vector<char*> places;  // of operations
    std::vector<Pending> under_way;
  };

  // False unless they all are.
  bool in_place(std::span<const BlockPart> parts, std::span<void*> arrays) const;
  void begin(std::span<const BlockPart> parts, Work work);
  static BlockPart* continued_by(const BlockPart& part, std::vector<BlockPart>& operations);
  bool has_room(std::span<const BlockPart> parts);
  void add(std::span<const BlockPart> parts, Work work);
  std::int64_t room_for(const BlockPart& part) const;
  Turn& latest() { return turns_[(next_ + turns_.size() - 1) % turns_.size()]; }
  void close();
  void bring(Turn& turn, char* buffer) const;
  static void settle(Turn& turn);
  static void carry_out(Turn& turn);

  Staging& staging_;
  bool joins_;
  Turn open_;  // nothing of which is brought so far
  std::array<Turn, Staging::kBuffers> turns_;
  std::size_t next_ = 0;
};

// The parts of elements [first, first + count) of arrays.
using PartsOf = std::function<std::vector<BlockPart>(std::int64_t first, std::int64_t count)>;
// Where they lie while they are worked on.
using StretchWork = std::function<void(std::span<void* const> arrays, std::int64_t first, std::int64_t count)>;
// `count` elements of arrays: all at once, in place, where all lie where they are computed with, else stretch after
// stretch, cut at multiples of 16. Nothing is under way when it returns.
void each_stretch(Staging& staging, std::int64_t count, const PartsOf& parts, const StretchWork& work);
// The same in a passage, which keeps the work until it is done: by the end of finish().
void each_stretch(StagedPass& passage, std::int64_t count, const PartsOf& parts, const StretchWork& work);

}  // namespace zero
