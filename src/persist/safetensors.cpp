#include "persist/safetensors.h"

#include "persist/json_node.h"

namespace zero {

std::string write_safetensors_header(SafetensorsHeader& header, std::int64_t alignment) {
  const char* const names[] = {"U8", "I32", "I64", "F16", "BF16", "F32", "F64"};
  Json json = Json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  for (const TensorEntry& each : header.tensors)
    json[each.name] = {
        {"dtype", names[static_cast<int>(each.type)]}, {"shape", each.shape}, {"data_offsets", {each.begin, each.end}}};
  std::string text = json.dump();
  while ((text.size() + 8) % static_cast<std::size_t>(alignment) != 0) text += ' ';
  std::string head(8, '\0');
  for (int i = 0; i < 8; ++i) head[static_cast<std::size_t>(i)] = static_cast<char>(text.size() >> 8 * i);
  header.data_begin = static_cast<std::int64_t>(8 + text.size());
  return head + text;
}

}  // namespace zero
