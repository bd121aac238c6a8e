#include "memory/disk_store.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/elements.h"
#include "base/text.h"
#include "memory/disk_measure.h"
#include "partition/staging.h"

namespace zero {
namespace {

constexpr std::int64_t kMostBlock = std::int64_t{64} << 20;
constexpr int kMostDepth = 1024;

std::int64_t pages(std::int64_t bytes) {
  return round_up(bytes, kDiskPage) / kDiskPage;
}

const DiskOptions& checked(const DiskOptions& options) {
  if (options.directories.empty()) throw ConfigError("a disk store without a directory", "name one");
  if (options.block < 0 || options.block > kMostBlock || options.block % kDiskPage != 0)
    throw ConfigError("a block of " + std::to_string(options.block) + " bytes on disks",
                      "give a multiple of " + std::to_string(kDiskPage) + ", at most " + std::to_string(kMostBlock) +
                          ", or 0 to have it measured");
  if (options.depth < 0 || options.depth > kMostDepth)
    throw ConfigError(std::to_string(options.depth) + " operations under way on a disk",
                      "give at most " + std::to_string(kMostDepth) + ", or 0");
  return options;
}

std::vector<DiskFile> opened(const DiskOptions& options, DiskSystem& system) {
  std::vector<DiskFile> files;
  for (const auto& directory : options.directories) files.emplace_back(system, directory.string(), options.direct);
  return files;
}

}  // namespace

class DiskStore::Place final : public Block::Place {
 public:
  Place(DiskStore& store, std::int64_t bytes, std::string whose, Block checks)
      : store_(store), extent_{0, bytes, std::move(whose), std::move(checks)} {
    if (bytes == 0) return;
    const std::lock_guard lock(store_.mutex_);
    const std::int64_t whole = round_up(bytes, kDiskPage);
    StripedFiles& files = *store_.files_;
    extent_.at = store_.space_.take(whole, files.alignment(whole), [&](std::int64_t end) { files.reserve(end); });
  }
  ~Place() override {
    if (extent_.bytes == 0) return;
    const std::lock_guard lock(store_.mutex_);
    store_.space_.give(extent_.at, round_up(extent_.bytes, kDiskPage));
  }

  void* data() override { return nullptr; }
  Pending read(std::int64_t at, View to) override { return begin(at, to.data, to.bytes(), /*writes=*/false); }
  Pending write(std::int64_t at, ConstView from) override {
    return begin(at, const_cast<void*>(from.data), from.bytes(), /*writes=*/true);
  }

 private:
  Pending begin(std::int64_t at, void* memory, std::int64_t bytes, bool writes) {
    return store_.service_->submit(
        std::make_shared<DiskOperation>(extent_, extent_.at + at, static_cast<char*>(memory), bytes, writes));
  }

  DiskStore& store_;
  DiskExtent extent_;
};

DiskStore::DiskStore(const DiskOptions& options, Store& memory, Book book, DiskSystem& system)
    : Store(Tier::disk, std::move(book)),
      options_(checked(options)),
      transfer_(disk_transfer(options.block)),
      memory_(memory) {
  std::vector<DiskFile> files = opened(options_, system);
  if (options_.block == 0) options_.block = measured_block(system, files, options_.queue, options_.depth);
  if (options_.depth == 0) options_.depth = static_cast<int>(disk_depth(options_.block));
  const int most = options_.depth * static_cast<int>(files.size());
  const std::int64_t bytes = options_.block * most;
  buffers_ = memory_.take(bytes + kDiskPage, Owner::update);
  const auto begin = reinterpret_cast<std::uintptr_t>(buffers_.view().data);
  char* const aligned = static_cast<char*>(buffers_.view().data) + (kDiskPage - begin % kDiskPage) % kDiskPage;
  const std::span<char> buffers(aligned, static_cast<std::size_t>(bytes));
  files_ = std::make_unique<StripedFiles>(std::move(files), options_.block);
  service_ = std::make_unique<DiskService>(*files_, make_disk_queue(options_.queue, system, most, buffers), buffers,
                                           options_.block, options_.checks);
}

DiskStore::~DiskStore() = default;

std::unique_ptr<Block::Place> DiskStore::provide(std::int64_t bytes, Owner owner, int unit) {
  Block checks;
  if (options_.checks && bytes > 0) {
    checks = memory_.take(pages(bytes) * static_cast<std::int64_t>(sizeof(std::uint64_t)), owner, unit);
    std::ranges::fill(
        std::span(static_cast<std::uint64_t*>(checks.view().data), static_cast<std::size_t>(pages(bytes))), 0);
  }
  const std::string whose = std::string(name(owner)) + (unit < 0 ? "" : " of unit " + std::to_string(unit));
  return std::make_unique<Place>(*this, bytes, whose, std::move(checks));
}

bool DiskStore::direct() const {
  return std::ranges::all_of(files_->files(), &DiskFile::direct);
}

std::string DiskStore::describe() const {
  std::vector<std::string> names;
  for (const DiskFile& file : files_->files())
    names.push_back(in_quotes(file.directory()) + (file.direct() ? "" : " (through the page cache)"));
  return "disk: " + joined(names) + "; " + std::string(queue()) + "; operations of " + std::to_string(options_.block) +
         " bytes, " + std::to_string(options_.depth) + " at once" + (names.size() > 1 ? " each" : "") +
         (options_.checks ? "; checked" : "");
}

}  // namespace zero
