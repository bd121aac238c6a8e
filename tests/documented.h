// The keys of docs/json.md, to be compared with those that commands write.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace documented {

using Json = nlohmann::ordered_json;

struct Row {
  std::vector<std::string> path;  // "runs", "[]", "losses"
  std::string key, type;
  bool seen = false;
};

inline std::vector<std::string> path_of(const std::string& key) {
  std::vector<std::string> path;
  std::istringstream parts(key);
  for (std::string part; std::getline(parts, part, '.');) {
    const bool each = part.ends_with("[]");
    path.push_back(part.substr(0, part.size() - (each ? 2 : 0)));
    if (each) path.emplace_back("[]");
  }
  return path;
}

// The table under the heading of the schema.
inline std::vector<Row> table_of(const std::string& file, const std::string& schema) {
  std::ifstream in(file);
  std::vector<Row> rows;
  bool here = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) here = line == "## " + schema;
    if (!here || !line.starts_with("| `")) continue;
    const auto end = line.find('`', 3), type = end + 4;
    const std::string key = line.substr(3, end - 3);
    rows.push_back({path_of(key), key, line.substr(type, line.find(" |", type) - type)});
  }
  EXPECT_FALSE(rows.empty()) << schema << " is not in " << file;
  return rows;
}

inline bool is(const Json& value, const std::string& type) {
  if (const auto end = type.find(" or null"); end != std::string::npos && !type.starts_with("array of"))
    return value.is_null() || is(value, type.substr(0, end));
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (!type.starts_with("array of ") || !value.is_array()) return false;
  return std::all_of(value.begin(), value.end(), [&](const Json& each) { return is(each, type.substr(9)); });
}

// The table of one schema and what of it was found.
class Schema {
 public:
  Schema(const std::string& file, std::string name) : name_(std::move(name)), rows_(table_of(file, name_)) {}

  // Every key of `json` must be in the table, with its type.
  void check(const Json& json) {
    EXPECT_EQ(json.value("schema", ""), name_);
    EXPECT_EQ(json.begin().key(), "schema");
    std::vector<std::string> path;
    below(json, path);
  }

  // Those that no file had, but for those below `without`.
  std::string missing(const std::string& without = "none") const {
    std::string text;
    for (const Row& row : rows_)
      if (!row.seen && !row.key.starts_with(without)) text += row.key + " ";
    return text;
  }

 private:
  void below(const Json& value, std::vector<std::string>& path) {
    for (const auto& [key, each] : value.items()) {
      path.push_back(value.is_array() ? "[]" : key);
      if (value.is_array() || find(path, each)) nested(each, path);
      path.pop_back();
    }
  }
  void nested(const Json& value, std::vector<std::string>& path) {
    const bool objects = value.is_array() && !value.empty() && value.front().is_object();
    if (value.is_object() || objects) below(value, path);
  }

  static bool fits(const Row& row, const std::vector<std::string>& path) {
    if (row.path.size() != path.size()) return false;
    for (std::size_t i = 0; i < path.size(); ++i)
      if (row.path[i] != "*" && row.path[i] != path[i]) return false;
    return true;
  }
  bool find(const std::vector<std::string>& path, const Json& value) {
    std::string text;
    for (const std::string& part : path) text += (text.empty() || part == "[]" ? "" : ".") + part;
    for (Row& row : rows_) {
      if (!fits(row, path)) continue;
      row.seen = true;
      EXPECT_TRUE(is(value, row.type)) << name_ << ": " << text << " is " << value << ", not " << row.type;
      return true;
    }
    ADD_FAILURE() << name_ << ": " << text << " is written, but not in docs/json.md";
    return false;
  }

  std::string name_;
  std::vector<Row> rows_;
};

}  // namespace documented
