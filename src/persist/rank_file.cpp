#include "persist/rank_file.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "persist/safetensors.h"

namespace zero {
namespace {

constexpr std::int64_t kAtOnce = std::int64_t{256} << 10;  // bytes that are added to a checksum, then copied
constexpr std::int64_t kDirect = std::int64_t{8} << 20;    // past the page cache; less in all does not go there
constexpr std::int64_t kHeaderAlignment = 8;               // of a file that does not

// "rank-00003.safetensors"
std::string rank_file_name(int rank) {
  std::array<char, 40> name{};
  std::snprintf(name.data(), name.size(), "rank-%05d.safetensors", rank);
  return name.data();
}

// Whether there is a copy that can go to the disk from where it lies.
bool is_on_pages(const Snapshot& snapshot) {
  return snapshot.copy() != nullptr && reinterpret_cast<std::uintptr_t>(snapshot.copy()) % kDirectPage == 0;
}

// What is not all of a tensor is a vector, named by where it begins.
TensorEntry entry_of(const StateTensor& tensor, const Snapshot::Slice& slice) {
  const std::int64_t count = slice.last - slice.first;
  const bool whole = count == tensor.numel();
  std::string name = describe(tensor.key);
  if (!whole) name += " from " + std::to_string(slice.elements.front().begin);
  return {name, type_of(tensor.dtype), whole ? tensor.shape : std::vector{count}, slice.offset,
          slice.offset + slice.bytes()};
}

// Of elements, those from the `first` on, before the `last` of them.
ElementRuns cut(const ElementRuns& runs, std::int64_t first, std::int64_t last) {
  ElementRuns part;
  each_range(runs, element_at(runs, first), element_at(runs, last - 1) + 1,
             [&](std::int64_t begin, std::int64_t end) { append(part, begin, end); });
  return part;
}

}  // namespace

RankFile::RankFile(Env& env, const std::string& folder, const Snapshot& snapshot) : snapshot_(snapshot) {
  for (std::size_t i = 0; i < snapshot.slices().size(); ++i) {
    const Snapshot::Slice& slice = snapshot.slices()[i];
    for (std::int64_t at = 0; at < slice.bytes(); at += kPiece)
      pieces_.push_back({i, {0, slice.offset + at, std::min(kPiece, slice.bytes() - at)}});
  }
  const bool direct = snapshot.bytes() >= kDirect;
  const std::string text = header(direct ? kDirectPage : kHeaderAlignment);
  part_.file = {rank_file_name(snapshot.rank()), static_cast<std::int64_t>(text.size()) + snapshot.bytes(),
                static_cast<std::int64_t>(text.size()), checksum_of(text)};
  auto file = env.create(folder + "/" + part_.file.name, direct ? Caching::direct : Caching::cached);
  file->write(text.data(), part_.file.header_bytes);
  file_.emplace(std::move(file), snapshot.bytes());
}

std::string RankFile::header(std::int64_t alignment) {
  SafetensorsHeader header;
  header.metadata["written by"] = "libzero " + library_version();
  for (const Snapshot::Slice& slice : snapshot_.slices()) {
    if (!slice.user) {
      header.tensors.push_back(entry_of(snapshot_.tensors()[slice.tensor], slice));
      continue;
    }
    const UserTensor& tensor = snapshot_.user_tensors()[slice.source];
    header.tensors.push_back(
        {tensor.name + " user", type_of(tensor.dtype), tensor.shape, slice.offset, slice.offset + slice.bytes()});
  }
  return write_safetensors_header(header, alignment);
}

void RankFile::write(std::int64_t bytes) {
  asked_ = std::min(asked_ + std::min(bytes, snapshot_.bytes()), snapshot_.bytes());
  is_on_pages(snapshot_) ? write_copy() : gather();
}

void RankFile::write_copy() {
  while (looked_ < asked_) {
    const char* const bytes = snapshot_.copy() + looked_;
    const std::int64_t count = std::min(WriteBehind::kStretch, asked_ - looked_);
    look(bytes, count);
    file_->pass(bytes, count);
  }
}

void RankFile::gather() {
  const auto& slices = snapshot_.slices();
  for (; slice_ < slices.size() && slices[slice_].offset < asked_; ++slice_)
    snapshot_.read(slices[slice_], [this](const void* from, std::int64_t count) {
      const auto* bytes = static_cast<const char*>(from);
      for (std::int64_t some = 0; count > 0; bytes += some, count -= some) {
        some = std::min(count, kAtOnce);
        look(bytes, some);
        file_->gather(bytes, some);
      }
    });
}

// The next bytes of the memory.
void RankFile::look(const char* bytes, std::int64_t count) {
  for (std::int64_t done = 0; done < count;) {
    StoredBytes& at = pieces_[piece_].at;
    const std::int64_t some = std::min(count - done, at.offset + at.bytes - looked_);
    hasher_.add(bytes + done, some);
    done += some;
    looked_ += some;
    if (looked_ < at.offset + at.bytes) continue;
    at.checksum = hasher_.result();
    hasher_.restart();
    ++piece_;
  }
}

StoredPiece RankFile::stored(const Piece& piece) const {
  const Snapshot::Slice& slice = snapshot_.slices()[piece.slice];
  const std::int64_t first = (piece.at.offset - slice.offset) / slice.item;
  StoredPiece stored{piece.at, cut(slice.elements, first, first + piece.at.bytes / slice.item)};
  stored.at.offset += part_.file.header_bytes;
  return stored;
}

RankPart RankFile::finish() {
  file_->finish();
  file_.reset();
  for (const UserTensor& each : snapshot_.user_tensors())
    part_.user_tensors.push_back({each.name, each.dtype, each.shape});
  for (const Piece& piece : pieces_) {
    const Snapshot::Slice& slice = snapshot_.slices()[piece.slice];
    const StoredPiece stored_piece = stored(piece);
    if (slice.user)
      part_.user_tensors[slice.source].pieces.push_back(stored_piece.at);
    else
      part_.pieces.emplace_back(slice.tensor, stored_piece);
  }
  return std::move(part_);
}

}  // namespace zero
