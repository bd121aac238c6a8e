#include "persist/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "persist/json_events.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::int64_t kLengthBytes = 8;

struct TypeWords {
  std::string_view name;
  int bits;
};
constexpr std::array<TypeWords, kTensorTypes> kTypes{
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};

std::string tensor_words(std::string_view name) {
  return "tensor " + in_quotes(name, '"');
}

std::string range_words(const TensorEntry& tensor) {
  return "[" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) + ")";
}

// The name that two tensors have, or null.
const std::string* given_twice(const std::vector<TensorEntry>& tensors) {
  std::vector<const std::string*> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) names.push_back(&tensor.name);
  const auto text = [](const std::string* each) -> const std::string& { return *each; };
  std::ranges::sort(names, {}, text);
  const auto found = std::ranges::adjacent_find(names, {}, text);
  return found == names.end() ? nullptr : *found;
}

// {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
class HeaderEvents final : public JsonEvents {
 public:
  HeaderEvents(const std::string& file, SafetensorsHeader& header) : JsonEvents(file + ": its header"), to_(header) {}

 private:
  enum class Next : std::uint8_t {
    header,
    member,  // of the header, or its end
    metadata,
    metadata_key,
    metadata_value,
    tensor,
    tensor_key,
    type,
    shape,
    size,
    offsets,
    offset,
  };

  void take_key(std::string& key) override {
    if (next_ == Next::member) return begin_member(key);
    if (next_ == Next::metadata_key) return begin_metadata(key);
    const auto known = std::ranges::find(kKeys, key, &Key::name);
    if (known == kKeys.end()) refuse("has the key " + in_quotes(key, '"') + ", which the format does not know");
    bool& seen = seen_[static_cast<std::size_t>(known - kKeys.begin())];
    if (std::exchange(seen, true)) refuse("has the key " + in_quotes(key, '"') + " twice");
    next_ = known->next;
  }
  void take_text(std::string& text) override {
    if (next_ == Next::metadata_value) {
      value_->second = std::move(text);
      next_ = Next::metadata_key;
    } else if (next_ == Next::type) {
      const auto type = tensor_type_named(text);
      if (!type) refuse("is of the type " + in_quotes(text, '"') + ", which the format does not know");
      tensor().type = *type;
      next_ = Next::tensor_key;
    } else {
      other("a string");
    }
  }
  void take_natural(std::uint64_t number) override {
    if (next_ != Next::size && next_ != Next::offset) return other("a number");
    if (!std::in_range<std::int64_t>(number))
      refuse("has the number " + std::to_string(number) + ", which is too large");
    const auto value = static_cast<std::int64_t>(number);
    if (next_ == Next::size) return tensor().shape.push_back(value);
    if (++offsets_ > 2) return refuse_offsets();
    (offsets_ == 1 ? tensor().begin : tensor().end) = value;
  }
  void open_object() override {
    switch (next_) {
      case Next::header: next_ = Next::member; break;
      case Next::metadata: next_ = Next::metadata_key; break;
      case Next::tensor: next_ = Next::tensor_key; break;
      default: other("an object");
    }
  }
  void open_array() override {
    switch (next_) {
      case Next::shape: next_ = Next::size; break;
      case Next::offsets: next_ = Next::offset; break;
      default: other("a list");
    }
  }
  void close() override {
    switch (next_) {
      case Next::offset:
        if (offsets_ != 2) refuse_offsets();
        [[fallthrough]];
      case Next::size: next_ = Next::tensor_key; break;
      case Next::tensor_key:
        for (std::size_t i = 0; i < kKeys.size(); ++i)
          if (!seen_[i]) refuse("has no " + std::string(kKeys[i].name));
        [[fallthrough]];
      default: next_ = Next::member;
    }
  }
  void other(const char* what) override {
    const auto found = std::string("has ") + what + " where ";
    switch (next_) {
      case Next::metadata: fail("has " + std::string(what) + " as " + std::string(kMetadata) + ", not an object");
      case Next::metadata_value:
        fail("has " + std::string(what) + " as " + in_quotes(value_->first, '"') + " of " + std::string(kMetadata) +
             ", not a string");
      case Next::tensor: refuse(std::string("is ") + what + ", not an object");
      case Next::type: refuse(found + "dtype should be a string");
      case Next::shape: refuse(found + "shape should be a list");
      case Next::size: refuse(found + "shape should have natural numbers");
      case Next::offsets: refuse(found + "data_offsets should be a list");
      case Next::offset: refuse(found + "data_offsets should have natural numbers");
      default: fail(std::string("is ") + what + ", not an object");
    }
  }

  void begin_member(std::string& name) {
    if (name == kMetadata) {
      if (std::exchange(metadata_seen_, true)) fail("has " + std::string(kMetadata) + " twice");
      next_ = Next::metadata;
      return;
    }
    to_.tensors.emplace_back().name = std::move(name);
    seen_ = {};
    offsets_ = 0;
    next_ = Next::tensor;
  }
  void begin_metadata(const std::string& key) {
    const auto [at, fresh] = to_.metadata.emplace(key, std::string());
    if (!fresh) fail("has " + in_quotes(key, '"') + " of " + std::string(kMetadata) + " twice");
    value_ = at;
    next_ = Next::metadata_value;
  }

  TensorEntry& tensor() { return to_.tensors.back(); }
  [[noreturn]] void refuse(const std::string& fault) { fail(tensor_words(tensor().name) + " " + fault); }
  [[noreturn]] void refuse_offsets() { refuse("has data_offsets that are not two numbers"); }

  struct Key {
    std::string_view name;
    Next next;
  };
  static constexpr std::array<Key, 3> kKeys{
      {{"dtype", Next::type}, {"shape", Next::shape}, {"data_offsets", Next::offsets}}};

  SafetensorsHeader& to_;
  Next next_ = Next::header;
  bool metadata_seen_ = false;
  std::map<std::string, std::string>::iterator value_;  // of the metadata's last key
  // Of the last tensor:
  std::array<bool, kKeys.size()> seen_{};
  int offsets_ = 0;
};

// Every tensor's bytes are as many as it takes, and together they are [0, data_bytes), each once.
void require_consistent(const SafetensorsHeader& header, std::int64_t data_bytes, const std::string& file) {
  const auto fail = [&](const TensorEntry& tensor, const std::string& fault) {
    throw CheckpointError(file + ": " + tensor_words(tensor.name) + " " + fault);
  };
  std::int64_t at = 0;
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.end < tensor.begin || tensor.end > data_bytes)
      fail(tensor, "has bytes " + range_words(tensor) + " of " + std::to_string(data_bytes));
    const auto bytes = bytes_of(tensor.type, tensor.shape);
    if (!bytes) fail(tensor, "has a shape that takes no whole number of bytes below 2^60");
    if (tensor.bytes() != *bytes)
      fail(tensor, "has bytes " + range_words(tensor) + ", but its type and shape take " + std::to_string(*bytes));
    if (tensor.begin < at) fail(tensor, "has bytes " + range_words(tensor) + ", some of which another tensor has");
    if (tensor.begin > at)
      fail(tensor, "has bytes " + range_words(tensor) + "; those from byte " + std::to_string(at) + " on are nobody's");
    at = tensor.end;
  }
  if (at != data_bytes)
    throw CheckpointError(file + " has " + std::to_string(data_bytes) +
                          " bytes behind its header, of which tensors have " + std::to_string(at));
}

// As JSON has it, in quotes.
std::string json_text(const std::string& text, const std::string& whose) try {
  return nlohmann::json(text).dump();
} catch (const nlohmann::json::exception&) {
  throw CheckpointError(whose + " cannot be written: " + in_quotes(text, '"') + " is not UTF-8");
}

std::string json_of(const TensorEntry& tensor) {
  std::string text =
      json_text(tensor.name, "a tensor's name") + R"(:{"dtype":")" + std::string(name(tensor.type)) + R"(","shape":[)";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) text += (i ? "," : "") + std::to_string(tensor.shape[i]);
  return text + R"(],"data_offsets":[)" + std::to_string(tensor.begin) + "," + std::to_string(tensor.end) + "]}";
}

std::string json_of(const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata)
    text += (text.empty() ? "" : ",") + json_text(key, "metadata") + ":" + json_text(value, "metadata");
  return "\"" + std::string(kMetadata) + "\":{" + text + "}";
}

void lay_out(std::vector<TensorEntry>& tensors) {
  std::int64_t at = 0;
  for (TensorEntry& tensor : tensors) {
    const auto bytes = bytes_of(tensor.type, tensor.shape);
    tensor.begin = at;
    if (!bytes || __builtin_add_overflow(at, *bytes, &at))
      throw CheckpointError(tensor_words(tensor.name) + " of " + std::string(name(tensor.type)) + " and shape " +
                            listed(tensor.shape) + " cannot be written: it takes no whole number of bytes below 2^60");
    tensor.end = at;
  }
}

}  // namespace

std::string_view name(TensorType type) {
  return kTypes[static_cast<std::size_t>(type)].name;
}

std::optional<TensorType> tensor_type_named(std::string_view name) {
  const auto found = std::ranges::find(kTypes, name, &TypeWords::name);
  if (found == kTypes.end()) return {};
  return static_cast<TensorType>(found - kTypes.begin());
}

TensorType type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return TensorType::f32;
    case Dtype::f64: return TensorType::f64;
    case Dtype::bf16: return TensorType::bf16;
    case Dtype::f16: return TensorType::f16;
    case Dtype::i64: return TensorType::i64;
    case Dtype::i32: return TensorType::i32;
    case Dtype::u8: break;
  }
  return TensorType::u8;
}

int bits_of(TensorType type) {
  return kTypes[static_cast<std::size_t>(type)].bits;
}

std::optional<std::int64_t> bytes_of(TensorType type, std::span<const std::int64_t> shape) {
  std::int64_t bits = bits_of(type);
  for (const std::int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bits, size, &bits)) return {};
  if (bits % 8 != 0) return {};
  return bits / 8;
}

std::string write_safetensors_header(SafetensorsHeader& header, std::int64_t alignment) {
  if (alignment < kLengthBytes || alignment % kLengthBytes != 0)
    throw CheckpointError("a header cannot be aligned to " + std::to_string(alignment) + " bytes",
                          "give a multiple of 8");
  if (const std::string* const twice = given_twice(header.tensors))
    throw CheckpointError(tensor_words(*twice) + " cannot be written twice into one file");
  lay_out(header.tensors);

  std::string text(kLengthBytes, '\0');
  text += '{';
  if (!header.metadata.empty()) text += json_of(header.metadata);
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.name == kMetadata) throw CheckpointError("a tensor cannot be called " + tensor.name + " in its file");
    if (text.back() != '{') text += ',';
    text += json_of(tensor);
  }
  text += '}';
  const auto size = static_cast<std::int64_t>(text.size());
  header.data_begin = size + (alignment - size % alignment) % alignment;
  const std::int64_t length = header.data_begin - kLengthBytes;
  if (length > kMostSafetensorsHeader)
    throw CheckpointError("a header of " + std::to_string(length) + " bytes cannot be written: the format has " +
                              std::to_string(kMostSafetensorsHeader) + " at most",
                          "write several files");
  text.resize(static_cast<std::size_t>(header.data_begin), ' ');
  for (int i = 0; i < kLengthBytes; ++i) text[static_cast<std::size_t>(i)] = static_cast<char>(length >> 8 * i & 0xff);
  return text;
}

std::int64_t safetensors_data_begin(std::span<const char> bytes, std::int64_t file_bytes, const std::string& file) {
  const std::int64_t seen = std::min(file_bytes, std::ssize(bytes));
  if (seen < kLengthBytes)
    throw CheckpointError(file + " ends after " + std::to_string(seen) + " bytes, within the length of its header");
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  if (length > static_cast<std::uint64_t>(kMostSafetensorsHeader))
    throw CheckpointError(file + " begins with a header of " + std::to_string(length) + " bytes; the format has " +
                              std::to_string(kMostSafetensorsHeader) + " at most",
                          "is it a safetensors file?");
  const std::int64_t begin = kLengthBytes + static_cast<std::int64_t>(length);
  if (begin > file_bytes)
    throw CheckpointError(file + " ends after " + std::to_string(file_bytes) + " bytes, within its header of " +
                          std::to_string(begin));
  return begin;
}

SafetensorsHeader read_safetensors_header(std::span<const char> bytes, std::int64_t file_bytes,
                                          const std::string& file) {
  const std::string source = shown(file);
  SafetensorsHeader header;
  header.data_begin = safetensors_data_begin(bytes, file_bytes, source);
  if (header.data_begin > std::ssize(bytes))
    throw StateError("of the header of " + source + ", which has " + std::to_string(header.data_begin) + " bytes, " +
                     std::to_string(bytes.size()) + " are given");
  const std::string_view text(bytes.data() + kLengthBytes, static_cast<std::size_t>(header.data_begin - kLengthBytes));
  if (!text.starts_with('{')) throw CheckpointError(source + ": its header does not begin with '{'");
  HeaderEvents(source, header).read(text);
  if (const std::string* const twice = given_twice(header.tensors))
    throw CheckpointError(source + ": " + tensor_words(*twice) + " is there twice");
  std::ranges::stable_sort(header.tensors, {}, [](const TensorEntry& each) { return std::pair(each.begin, each.end); });
  require_consistent(header, file_bytes - header.data_begin, source);
  return header;
}

}  // namespace zero
