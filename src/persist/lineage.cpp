#include "persist/lineage.h"

#include <algorithm>

#include "base/text.h"
#include "persist/json_node.h"
#include "persist/manifest_words.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::string_view kSchema = "zero.lineage/1";
constexpr std::int64_t kLongest = std::int64_t{1} << 20;  // bytes

}  // namespace

bool Lineage::has_left(std::int64_t other) const {
  return std::ranges::any_of(left, [&](const auto& each) { return each.first <= other && other <= each.second; });
}

std::string to_text(const Lineage& lineage) {
  std::vector<std::string> ranges;
  for (const auto& [first, last] : lineage.left) ranges.push_back(listed(std::vector{first, last}));
  const std::string text = "{\n \"schema\": " + json_string(std::string(kSchema)) +
                           ",\n \"number\": " + std::to_string(lineage.number) + ",\n \"left\": [" + joined(ranges) +
                           "]";
  return text + checksum_member(text);
}

Lineage lineage_of(const std::string& text, const std::string& source) {
  require_checksum(text, source);
  const Json json = parse_json(text, source);
  const JsonNode node(json, source);
  node.members({"schema", "number", "left", "checksum"});
  if (node["schema"].text() != kSchema) node["schema"].fail("is not " + std::string(kSchema));
  return {node["number"].integer(1), node["left"].all([](const JsonNode& each) {
            const auto ends = each.all([](const JsonNode& end) { return end.integer(); });
            if (ends.size() != 2 || ends[0] > ends[1]) each.fail("is no range of numbers");
            return std::pair(ends[0], ends[1]);
          })};
}

Lineage read_lineage(Env& env, const std::string& folder) {
  const std::string path = folder + "/" + std::string(kLineageFile);
  if (!env.exists(path)) return {};
  const std::string text = read_text(env, path, kLongest);
  try {
    return lineage_of(text, path);
  } catch (const CheckpointError&) {  // which a damaged checkpoint may have
    return {};
  }
}

}  // namespace zero
