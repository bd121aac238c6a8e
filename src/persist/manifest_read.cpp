// manifest.json, read.
#include <bit>
#include <charconv>
#include <limits>
#include <optional>

#include "persist/json_node.h"
#include "persist/manifest.h"
#include "persist/manifest_words.h"

namespace zero {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

double number_of(const JsonNode& node) {
  if (!node.is_text()) return node.number();
  const std::string& text = node.text();
  std::uint64_t bits = 0;
  if (text.size() == 18) std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
  const double value = std::bit_cast<double>(bits);
  if (bits_text(value) != text || value - value == 0) node.fail("is no number");
  return value;
}

std::vector<double> numbers_of(const JsonNode& node) {
  return node.all(number_of);
}

Checksum checksum_of_node(const JsonNode& node) {
  const std::optional<Checksum> checksum = checksum_named(node.text());
  if (!checksum) node.fail("is no checksum of 32 hexadecimal digits");
  return *checksum;
}

// The value whose name() it is.
template <class Enum>
Enum named(const JsonNode& node) {
  for (int i = 0; name(static_cast<Enum>(i)) != "?"; ++i)
    if (name(static_cast<Enum>(i)) == node.text()) return static_cast<Enum>(i);
  node.fail(in_quotes(node.text()) + " is not known");
}

std::vector<std::int64_t> shape_of(const JsonNode& node) {
  std::int64_t bytes = size_of(Dtype::f64);
  return node.all([&](const JsonNode& each) {
    const std::int64_t size = each.integer();
    if (size > 0 && bytes > kMost / size) node.fail("has more elements than can be counted");
    bytes *= std::max<std::int64_t>(size, 1);
    return size;
  });
}

StateBlocks blocks_of(const JsonNode& node) {
  node.members({"size", "before", "order"});
  return {node["size"].integer(1), node["before"].integer(),
          node["order"].all([](const JsonNode& each) { return each.integer(0, 1 << 20); })};
}

StoredBytes stored_of(const JsonNode& node) {
  return {static_cast<std::size_t>(node["file"].integer()), node["offset"].integer(), node["bytes"].integer(1),
          checksum_of_node(node["xxh3"])};
}

ElementRun run_of(const JsonNode& node) {
  const std::vector<std::int64_t> numbers = node.all([](const JsonNode& each) { return each.integer(); });
  const bool one = numbers.size() == 2;
  if ((!one && numbers.size() != 4) || numbers[0] >= numbers[1]) node.fail("is no range of elements");
  ElementRun run{numbers[0], numbers[1] - numbers[0]};
  if (one) return run;
  run.step = numbers[2];
  run.times = numbers[3];
  if (run.times < 2 || run.step < run.length || run.step > (kMost - numbers[1]) / (run.times - 1))
    node.fail("is no sequence of ranges");
  return run;
}

StoredPiece piece_of(const JsonNode& node) {
  node.members({"file", "offset", "bytes", "elements", "xxh3"});
  StoredPiece piece{stored_of(node)};
  std::int64_t end = 0;
  node["elements"].each([&](const JsonNode& each) {
    const ElementRun run = run_of(each);
    if (run.begin < end) each.fail("begins before the range before it ends");
    end = run.end();
    piece.elements.push_back(run);
  });
  return piece;
}

StoredFile file_of(const JsonNode& node) {
  node.members({"name", "bytes", "header_bytes", "header_xxh3"});
  const std::string& name = node["name"].text();
  const bool plain =
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
  if (name.empty() || !plain || name.front() == '.' || name == kManifest) node.fail("is no name of a file of tensors");
  const std::int64_t bytes = node["bytes"].integer();
  return {name, bytes, node["header_bytes"].integer(0, bytes), checksum_of_node(node["header_xxh3"])};
}

StoredTensor tensor_of(const JsonNode& node) {
  node.members({"name", "kind", "part", "dtype", "shape", "pieces"}, {"blocks"});
  StoredTensor stored{{{node["name"].text(), named<StateKind>(node["kind"]), node["part"].text()},
                       named<Dtype>(node["dtype"]),
                       shape_of(node["shape"])}};
  if (node.has("blocks")) stored.tensor.blocks = blocks_of(node["blocks"]);
  stored.pieces = node["pieces"].all(piece_of);
  return stored;
}

StoredUserTensor user_tensor_of(const JsonNode& node) {
  node.members({"name", "dtype", "shape", "pieces"});
  return {node["name"].text(), named<Dtype>(node["dtype"]), shape_of(node["shape"]),
          node["pieces"].all([](const JsonNode& each) {
            each.members({"file", "offset", "bytes", "xxh3"});
            return stored_of(each);
          })};
}

MeshShape mesh_of(const JsonNode& node, const JsonNode& ranks) {
  node.members({"pipe", "replica", "shard", "tensor"});
  constexpr std::int64_t most = 1 << 30;
  std::int64_t left = ranks.integer(1, most);
  const auto size = [&](std::string_view axis) {
    const std::int64_t along = node[axis].integer(1, most);
    if (left % along != 0) node.fail("is no mesh of so many ranks");
    left /= along;
    return static_cast<int>(along);
  };
  const MeshOptions options{size("shard"), size("tensor"), size("pipe")};
  if (left != node["replica"].integer(1, most)) node.fail("is no mesh of so many ranks");
  return {static_cast<int>(ranks.integer()), options};
}

StateScalars scalars_of(const JsonNode& node, bool first_schema) {
  if (first_schema)
    node.members({"steps", "skipped_steps", "micro_batches", "seed", "updates", "float8"}, {"loss_scaler"});
  else
    node.members({"steps", "skipped_steps", "micro_batches", "seed", "updates", "optimizers", "float8"},
                 {"loss_scaler"});
  StateScalars scalars{node["steps"].integer(), node["skipped_steps"].integer(), node["micro_batches"].integer(),
                       node["seed"].natural()};
  node["updates"].each_member(
      [&](const std::string& key, const JsonNode& each) { scalars.updates[key] = each.integer(); });
  if (!first_schema)
    node["optimizers"].each_member(
        [&](const std::string& key, const JsonNode& each) { scalars.optimizers[key] = each.text(); });
  if (node.has("loss_scaler")) {
    const JsonNode scaler = node["loss_scaler"];
    scaler.members({"value", "clean_steps", "overflows_left"});
    scalars.loss_scaler = {number_of(scaler["value"]), scaler["clean_steps"].integer(),
                           scaler["overflows_left"].integer()};
  }
  node["float8"].each_member([&](const std::string& key, const JsonNode& each) {
    each.members({"inputs", "gradients"});
    scalars.float8[key] = {numbers_of(each["inputs"]), numbers_of(each["gradients"])};
  });
  return scalars;
}

}  // namespace

Manifest manifest_of(const std::string& text, const std::string& source) {
  require_checksum(text, source);
  const Json json = parse_json(text, source);
  const JsonNode node(json, source);
  const bool first_schema = node.has("schema") && node["schema"].text() == kFirstManifestSchema;
  if (node.has("schema") && !first_schema && node["schema"].text() != kManifestSchema)
    node["schema"].fail(in_quotes(node["schema"].text()) + " is not " + std::string(kManifestSchema) +
                        ": another version of libzero wrote it");
  node.members({"schema", "version", "plan", "ranks", "mesh", "scalars", "user", "files", "tensors", "user_tensors",
                "checksum"});
  Manifest manifest{node["version"].text(),
                    node["plan"].text(),
                    mesh_of(node["mesh"], node["ranks"]),
                    scalars_of(node["scalars"], first_schema),
                    node["user"].text(),
                    node["files"].all(file_of),
                    node["tensors"].all(tensor_of),
                    node["user_tensors"].all(user_tensor_of)};
  check(manifest, source);
  return manifest;
}

RankPart rank_part_of(const std::string& text, const std::string& source) {
  const Json json = parse_json(text, source);
  const JsonNode node(json, source);
  node.members({"file", "pieces", "user_tensors"});
  const auto piece = [](const JsonNode& each) {
    each.members({"tensor", "piece"});
    return std::pair(static_cast<std::size_t>(each["tensor"].integer()), piece_of(each["piece"]));
  };
  return {file_of(node["file"]), node["pieces"].all(piece), node["user_tensors"].all(user_tensor_of)};
}

}  // namespace zero
