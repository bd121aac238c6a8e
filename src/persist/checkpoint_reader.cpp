#include "persist/checkpoint_reader.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::int64_t kLook = std::int64_t{256}
                               << 10;  // bytes that are read at a time to be looked at, while they are in the cache
constexpr std::int64_t kGathered = std::int64_t{16} << 20;     // bytes that are read at a time to be spread
constexpr std::int64_t kMostManifest = std::int64_t{1} << 32;  // bytes

// Of bytes [begin, end) of a file, which it leaves in `to` one after the other, or, where that is null, nowhere.
Checksum checksum_in(ReadableFile& file, std::int64_t begin, std::int64_t end, char* to, std::vector<char>& chunk,
                     const ReadProgress& progress = {}) {
  Hasher hasher;
  if (!to)
    chunk.resize(static_cast<std::size_t>(std::max<std::int64_t>(kLook, static_cast<std::int64_t>(chunk.size()))));
  for (std::int64_t at = begin; at < end; at += kLook) {
    const std::int64_t count = std::min(kLook, end - at);
    char* const bytes = to ? to + (at - begin) : chunk.data();
    file.read(at, bytes, count);
    hasher.add(bytes, count);
    if (progress) progress(count);
  }
  return hasher.result();
}

StoredBytes header_of(const Manifest& manifest, std::size_t file) {
  return {file, 0, manifest.files[file].header_bytes, manifest.files[file].header};
}

constexpr std::string_view kHeader = "the header";
constexpr std::string_view kDiffers = "their checksum is not that of what was written";

CheckpointFault fault_at(const Manifest& manifest, const StoredBytes& stored, const std::string& tensor,
                         std::string_view what) {
  return {manifest.files[stored.file].name, tensor, stored.offset, stored.offset + stored.bytes, std::string(what)};
}

std::string size_fault(std::int64_t found, std::int64_t written) {
  return "it has " + std::to_string(found) + " bytes, " + std::to_string(written) + " were written";
}

}  // namespace

std::string describe(const CheckpointFault& fault) {
  std::string text = fault.file;
  if (fault.end > fault.begin) text += ", bytes " + std::to_string(fault.begin) + " to " + std::to_string(fault.end);
  if (!fault.tensor.empty()) text += ", of " + shown(fault.tensor);
  return text + ": " + fault.what;
}

std::string describe(const std::vector<CheckpointFault>& faults) {
  if (faults.empty()) return {};
  const std::string more = faults.size() > 1 ? ", and " + std::to_string(faults.size() - 1) + " more" : "";
  return describe(faults.front()) + more;
}

Checkpoint Checkpoint::open(Env& env, const std::string& folder) {
  const std::string path = folder + "/" + std::string(kManifest);
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  checkpoint.manifest_ = manifest_of(read_text(env, path, kMostManifest), path);
  sort_pieces(checkpoint.manifest_);
  return checkpoint;
}

VerifiedFiles::VerifiedFiles(Env& env, const Checkpoint& checkpoint)
    : env_(env), checkpoint_(checkpoint), files_(checkpoint.manifest().files.size()) {}

ReadableFile& VerifiedFiles::file(std::size_t index) {
  if (files_[index]) return *files_[index];
  const StoredFile& stored = checkpoint_.manifest().files[index];
  const std::string path = checkpoint_.folder() + "/" + stored.name;
  std::unique_ptr<ReadableFile> file = env_.open(path);
  if (file->size() != stored.bytes)
    throw CheckpointError(in_quotes(path) + " is damaged: " + size_fault(file->size(), stored.bytes));
  const StoredBytes header = header_of(checkpoint_.manifest(), index);
  if (checksum_in(*file, 0, header.bytes, nullptr, chunk_) != header.checksum)
    throw CheckpointError(checkpoint_.folder() + " is damaged: " +
                          describe(fault_at(checkpoint_.manifest(), header, std::string(kHeader), kDiffers)));
  files_[index] = std::move(file);
  return *files_[index];
}

// Of a part of them, the first time, all are read; and then, of other parts, the stretches that these lie in, each of
// which has a checksum since.
void VerifiedFiles::read(const StoredBytes& stored, std::int64_t begin, std::int64_t end, void* to,
                         const std::string& what) {
  if (begin == end) return;
  ReadableFile& from = file(stored.file);
  const auto require = [&](bool same) {
    if (same) return;
    throw CheckpointError(checkpoint_.folder() +
                          " is damaged: " + describe(fault_at(checkpoint_.manifest(), stored, what, kDiffers)));
  };
  auto* const memory = static_cast<char*>(to);
  if (begin == 0 && end == stored.bytes)
    return require(checksum_in(from, stored.offset, stored.offset + end, memory, chunk_) == stored.checksum);
  const bool first = !stretches_.contains({stored.file, stored.offset});
  std::vector<Checksum>& stretches = stretches_[{stored.file, stored.offset}];
  Hasher all;
  chunk_.resize(static_cast<std::size_t>(std::max<std::int64_t>(kLook, static_cast<std::int64_t>(chunk_.size()))));
  const std::int64_t last = first ? stored.bytes : end;
  try {
    for (std::int64_t at = first ? 0 : begin / kLook * kLook; at < last; at += kLook) {
      const std::int64_t count = std::min(kLook, stored.bytes - at);
      const std::int64_t wanted = std::max(begin, at), until = std::min(end, at + count);
      const bool straight = wanted == at && until == at + count;
      char* const bytes = straight ? memory + (at - begin) : chunk_.data();
      from.read(stored.offset + at, bytes, count);
      const Checksum found = checksum_of({bytes, static_cast<std::size_t>(count)});
      if (first) {
        all.add(bytes, count);
        stretches.push_back(found);
      } else {
        require(found == stretches[static_cast<std::size_t>(at / kLook)]);
      }
      if (!straight && wanted < until)
        std::memcpy(memory + (wanted - begin), bytes + (wanted - at), static_cast<std::size_t>(until - wanted));
    }
    if (first) require(all.result() == stored.checksum);
  } catch (...) {
    if (first) stretches_.erase({stored.file, stored.offset});
    throw;
  }
}

CheckpointSource::CheckpointSource(Env& env, const Checkpoint& checkpoint)
    : checkpoint_(checkpoint), files_(env, checkpoint) {
  for (const StoredTensor& stored : checkpoint.manifest().tensors) {
    tensors_.push_back(stored.tensor);
    std::vector<std::int64_t>& reach = reach_.emplace_back();
    for (const StoredPiece& piece : stored.pieces)
      reach.push_back(std::max(reach.empty() ? 0 : reach.back(), piece.elements.back().end()));
  }
}

void CheckpointSource::read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) {
  const StoredTensor& stored = checkpoint_.manifest().tensors.at(tensor);
  const std::string what = describe(stored.tensor.key);
  if (begin < 0 || begin > end || end > stored.tensor.numel())
    throw StateError(what + " has no elements [" + std::to_string(begin) + ", " + std::to_string(end) + ")");
  const Wanted wanted{begin, end, size_of(stored.tensor.dtype), static_cast<char*>(values)};
  const std::vector<std::int64_t>& reach = reach_[tensor];
  for (auto i = static_cast<std::size_t>(std::ranges::upper_bound(reach, begin) - reach.begin());
       i < reach.size() && stored.pieces[i].elements.front().begin < end; ++i)
    read_piece(stored.pieces[i], wanted, what);
}

// Its elements lie in the file in their order, and so those wanted lie there one after the other.
void CheckpointSource::read_piece(const StoredPiece& piece, const Wanted& wanted, const std::string& what) {
  const std::int64_t first = below(piece.elements, wanted.begin), last = below(piece.elements, wanted.end);
  if (first == last) return;
  const auto place_of = [&](std::int64_t element) { return wanted.values + (element - wanted.begin) * wanted.item; };
  const auto read = [&](std::int64_t from, std::int64_t to, char* values) {
    files_.read(piece.at, from * wanted.item, to * wanted.item, values, what);
  };
  const std::int64_t begin = element_at(piece.elements, first);
  if (element_at(piece.elements, last - 1) - begin == last - 1 - first) return read(first, last, place_of(begin));
  const std::int64_t step = kGathered / wanted.item;
  chunk_.resize(static_cast<std::size_t>(std::min(step, last - first) * wanted.item));
  std::int64_t at = first, chunk = first, loaded = first;  // in the piece: where we are, and what is in the chunk
  each_range(piece.elements, wanted.begin, wanted.end, [&](std::int64_t element, std::int64_t end) {
    while (element < end) {
      if (at == loaded) {
        chunk = at;
        loaded = std::min(at + step, last);
        read(chunk, loaded, chunk_.data());
      }
      const std::int64_t count = std::min(end - element, loaded - at);
      std::memcpy(place_of(element), chunk_.data() + (at - chunk) * wanted.item,
                  static_cast<std::size_t>(count * wanted.item));
      element += count;
      at += count;
    }
  });
}

void CheckpointSource::read_user(std::size_t tensor, void* values) {
  std::int64_t bytes = 0;
  for (const StoredBytes& at : checkpoint_.manifest().user_tensors.at(tensor).pieces) bytes += at.bytes;
  read_user(tensor, 0, bytes, values);
}

void CheckpointSource::read_user(std::size_t tensor, std::int64_t begin, std::int64_t end, void* bytes) {
  const StoredUserTensor& stored = checkpoint_.manifest().user_tensors.at(tensor);
  auto* const to = static_cast<char*>(bytes);
  std::int64_t piece = 0;  // where it begins
  for (const StoredBytes& at : stored.pieces) {
    const std::int64_t first = std::max(begin, piece), last = std::min(end, piece + at.bytes);
    if (first < last) files_.read(at, first - piece, last - piece, to + (first - begin), describe(stored));
    piece += at.bytes;
  }
}

namespace {

class Verifier {
 public:
  Verifier(Env& env, const Checkpoint& checkpoint, const ReadProgress& progress)
      : env_(env), checkpoint_(checkpoint), progress_(progress) {}

  std::vector<CheckpointFault> run() {
    const Manifest& manifest = checkpoint_.manifest();
    std::vector<std::vector<Piece>> pieces(manifest.files.size());
    for (const StoredTensor& stored : manifest.tensors)
      for (const StoredPiece& piece : stored.pieces)
        pieces[piece.at.file].emplace_back(piece.at, describe(stored.tensor.key));
    for (const StoredUserTensor& stored : manifest.user_tensors)
      for (const StoredBytes& at : stored.pieces) pieces[at.file].emplace_back(at, describe(stored));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].emplace_back(header_of(manifest, i), kHeader);
      std::ranges::sort(pieces[i], {}, [](const Piece& piece) { return piece.first.offset; });
      file(manifest.files[i], pieces[i]);
    }
    return std::move(faults_);
  }

 private:
  using Piece = std::pair<StoredBytes, std::string>;

  void file(const StoredFile& stored, const std::vector<Piece>& pieces) {
    std::unique_ptr<ReadableFile> found;
    try {
      found = env_.open(checkpoint_.folder() + "/" + stored.name);
    } catch (const Error& error) {
      faults_.push_back({stored.name, {}, 0, stored.bytes, error.what()});
      return;
    }
    const std::int64_t size = found->size();
    if (size != stored.bytes)
      faults_.push_back({stored.name,
                         {},
                         std::min(size, stored.bytes),
                         std::max(size, stored.bytes),
                         size_fault(size, stored.bytes)});
    for (const auto& [at, what] : pieces) {
      try {
        if (checksum_in(*found, at.offset, at.offset + at.bytes, nullptr, chunk_, progress_) != at.checksum)
          faults_.push_back(fault_at(checkpoint_.manifest(), at, what, kDiffers));
      } catch (const Error& error) {
        faults_.push_back(fault_at(checkpoint_.manifest(), at, what, error.what()));
      }
    }
  }

  Env& env_;
  const Checkpoint& checkpoint_;
  const ReadProgress& progress_;
  std::vector<char> chunk_;
  std::vector<CheckpointFault> faults_;
};

}  // namespace

std::vector<CheckpointFault> verify(Env& env, const std::string& folder, const ReadProgress& progress) {
  try {
    const Checkpoint checkpoint = Checkpoint::open(env, folder);
    return Verifier(env, checkpoint, progress).run();
  } catch (const Error& error) {
    return {{std::string(kManifest), {}, 0, 0, error.what()}};
  }
}

}  // namespace zero
