#include <algorithm>
#include <queue>
#include <set>

#include "base/text.h"
#include "persist/manifest.h"
#include "zero/error.h"

namespace zero {
namespace {

// Ranges of elements that are looked at one by one: a file that names more is hostile, or of no use.
constexpr std::int64_t kMostRanges = std::int64_t{1} << 27;

class Checker {
 public:
  Checker(const Manifest& manifest, const std::string& source) : manifest_(manifest), source_(source) {}

  void run() {
    std::set<std::string> files, users;
    std::set<StateKey> keys;
    for (const StoredFile& file : manifest_.files)
      if (!files.insert(file.name).second) fail("file " + in_quotes(file.name) + " is listed twice");
    regions_.resize(manifest_.files.size());
    for (const StoredTensor& stored : manifest_.tensors) {
      if (!keys.insert(stored.tensor.key).second) fail(shown(describe(stored.tensor.key)) + " is listed twice");
      tensor(stored);
    }
    for (const StoredUserTensor& stored : manifest_.user_tensors) {
      if (!users.insert(stored.name).second) fail("user tensor " + in_quotes(stored.name) + " is listed twice");
      user_tensor(stored);
    }
    for (std::size_t i = 0; i < regions_.size(); ++i) file(manifest_.files[i], regions_[i]);
  }

 private:
  using Region = std::pair<std::int64_t, std::int64_t>;  // offset, end

  // The next range of a piece's elements.
  struct Next {
    std::int64_t begin, end;
    const ElementRuns* runs;
    std::size_t run;
    std::int64_t i;
    bool operator<(const Next& other) const { return begin > other.begin; }  // the smallest first
  };

  [[noreturn]] void fail(const std::string& fault) const { throw CheckpointError(source_ + ": " + fault); }

  void take(const StoredBytes& at, const std::string& what) {
    if (at.file >= regions_.size()) fail(what + " is in file " + std::to_string(at.file) + ", which is not listed");
    const StoredFile& file = manifest_.files[at.file];
    if (at.bytes < 1 || at.offset < file.header_bytes || at.offset > file.bytes || at.bytes > file.bytes - at.offset)
      fail(what + " is in bytes " + std::to_string(at.offset) + " and so many as " + std::to_string(at.bytes) + " of " +
           file.name + ", which has none there");
    regions_[at.file].emplace_back(at.offset, at.offset + at.bytes);
  }

  void tensor(const StoredTensor& stored) {
    const std::string what = shown(describe(stored.tensor.key));
    const std::int64_t numel = stored.tensor.numel();
    std::priority_queue<Next> queue;
    for (const StoredPiece& piece : stored.pieces) {
      take(piece.at, what);
      std::int64_t count = 0;
      for (const ElementRun& run : piece.elements) {
        if (run.end() > numel) fail(what + " has no element " + std::to_string(run.end() - 1));
        ranges_ += run.times;
        count += run.count();  // of ranges that are apart: at most numel
      }
      if (piece.elements.empty() || count * size_of(stored.tensor.dtype) != piece.at.bytes)
        fail(what + ": a piece of " + std::to_string(count) + " elements has " + std::to_string(piece.at.bytes) +
             " bytes");
      const ElementRun& first = piece.elements.front();
      queue.push({first.begin, first.begin + first.length, &piece.elements, 0, 0});
    }
    if (ranges_ > kMostRanges) fail(what + " is in too many pieces");
    covered(what, numel, queue);
  }

  void covered(const std::string& what, std::int64_t numel, std::priority_queue<Next>& queue) const {
    std::int64_t done = 0;
    for (; !queue.empty(); queue.pop()) {
      Next next = queue.top();
      if (next.begin > done) break;
      if (next.begin < done) fail(what + ": element " + std::to_string(next.begin) + " is there twice");
      done = next.end;
      const ElementRun& run = (*next.runs)[next.run];
      if (++next.i == run.times) ++next.run, next.i = 0;
      if (next.run == next.runs->size()) continue;
      const ElementRun& following = (*next.runs)[next.run];
      next.begin = following.begin + next.i * following.step;
      next.end = next.begin + following.length;
      queue.push(next);  // behind the top, which begins before it
    }
    if (done != numel) fail(what + ": element " + std::to_string(done) + " is in no piece");
  }

  void user_tensor(const StoredUserTensor& stored) {
    const std::string what = "user tensor " + in_quotes(stored.name);
    std::int64_t bytes = size_of(stored.dtype);
    for (const std::int64_t size : stored.shape) bytes *= size;
    for (const StoredBytes& at : stored.pieces) {
      take(at, what);
      bytes -= std::min(bytes + 1, at.bytes);
    }
    if (bytes != 0) fail(what + ": its pieces have other bytes than its elements");
  }

  void file(const StoredFile& stored, std::vector<Region>& regions) const {
    std::ranges::sort(regions);
    std::int64_t done = stored.header_bytes;
    for (const auto& [offset, end] : regions) {
      if (offset != done) break;
      done = end;
    }
    if (done != stored.bytes)
      fail(stored.name + ": byte " + std::to_string(done) + " is in no piece, or one before it in two");
  }

  const Manifest& manifest_;
  const std::string& source_;
  std::vector<std::vector<Region>> regions_;  // by file
  std::int64_t ranges_ = 0;
};

}  // namespace

void sort_pieces(Manifest& manifest) {
  for (StoredTensor& stored : manifest.tensors)
    std::ranges::sort(stored.pieces, {}, [](const StoredPiece& piece) { return piece.elements.front().begin; });
}

void check(const Manifest& manifest, const std::string& source) {
  Checker(manifest, source).run();
}

}  // namespace zero
