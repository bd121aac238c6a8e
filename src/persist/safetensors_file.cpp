#include "persist/safetensors_file.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "zero/error.h"

namespace zero {

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(read_safetensors_header(file_.bytes(), file_.size(), path)), by_name_(entries().size()) {
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  std::ranges::sort(by_name_, {}, [&](std::size_t i) -> const std::string& { return entries()[i].name; });
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto name_of = [&](std::size_t i) -> std::string_view { return entries()[i].name; };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return found != by_name_.end() && name_of(*found) == name ? &entries()[*found] : nullptr;
}

std::int64_t SafetensorsFile::place(const TensorEntry& tensor, std::int64_t begin, std::int64_t end) const {
  const bool ours = tensor.begin >= 0 && tensor.begin <= tensor.end && tensor.end <= header_.data_bytes();
  if (!ours || begin < 0 || begin > end || end > tensor.bytes())
    throw StateError(shown(path()) + ": bytes [" + std::to_string(begin) + ", " + std::to_string(end) + ") of tensor " +
                     in_quotes(tensor.name, '"') + ", which has " + std::to_string(tensor.bytes()));
  return header_.data_begin + tensor.begin + begin;
}

std::span<const char> SafetensorsFile::bytes(const TensorEntry& tensor, std::int64_t begin, std::int64_t end) const {
  return file_.bytes().subspan(static_cast<std::size_t>(place(tensor, begin, end)),
                               static_cast<std::size_t>(end - begin));
}

void SafetensorsFile::read(const TensorEntry& tensor, std::int64_t begin, std::span<char> to) const {
  std::int64_t end = 0;
  if (__builtin_add_overflow(begin, std::ssize(to), &end)) end = -1;
  file_.read(place(tensor, begin, end), to);
}

}  // namespace zero
