// Tables of what tests expect, which people write and review: tests/tables. The first line names the columns, each
// other line is a row, and | stands between cells. A line that begins with a space goes on in the cells above it, one
// that begins with # is a comment, where a cell is "-" nothing is expected, and … stands for any text.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace golden {

// Without the spaces around them.
inline std::vector<std::string> parts_of(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; end != text.npos; begin = end + separator.size()) {
    end = text.find(separator, begin);
    const std::string_view part = text.substr(begin, end == text.npos ? end : end - begin);
    const auto first = std::min(part.find_first_not_of(' '), part.size());
    parts.emplace_back(part.substr(first, part.find_last_not_of(' ') + 1 - first));
  }
  return parts;
}

class Row {
 public:
  explicit Row(std::string where) : where_(std::move(where)) {}

  const std::string& text(const std::string& column) const {
    const auto cell = cells_.find(column);
    if (cell == cells_.end() || cell->second.empty()) throw std::runtime_error(where_ + ": no " + column);
    return cell->second;
  }
  double number(const std::string& column) const { return std::stod(text(column)); }
  int count(const std::string& column) const { return std::stoi(text(column)); }
  // What a cell lists: one a line, or with … between.
  std::vector<std::string> list(const std::string& column) const {
    std::vector<std::string> all;
    for (const std::string& line : parts_of(text(column), "\n"))
      for (const std::string& each : parts_of(line, "…"))
        if (!each.empty()) all.push_back(each);
    return all;
  }

  void expect(const std::string& column, const std::string& found) const {
    if (text(column).find("…") != std::string::npos) return expect_in(column, found);
    expect_part(column, text(column), text(column) == found, found);
  }
  void expect(const std::string& column, std::integral auto found) const { expect(column, std::to_string(found)); }
  // To so many units of the last digit that the figure has.
  void expect_near(const std::string& column, double found, double units) const {
    const std::string& figure = text(column);
    const auto decimals = figure.size() - 1 - std::min(figure.find('.'), figure.size() - 1);
    const double margin = units * std::pow(10, -static_cast<double>(decimals));
    expect_part(column, figure, figure == "-" || std::abs(found - std::stod(figure)) <= margin, std::to_string(found));
  }
  void expect_in(const std::string& column, const std::string& found) const {
    for (const std::string& each : list(column)) expect_part(column, each, found.find(each) != found.npos, found);
  }
  // One of what the cell lists.
  void expect_part(const std::string& column, const std::string& part, bool met, const std::string& found) const {
    EXPECT_TRUE(met || part == "-") << where_ << ": " << column << ": " << part << "\n  found: " << found;
  }

  void add(const std::string& column, const std::string& text) {
    std::string& cell = cells_[column];
    cell += (cell.empty() || text.empty() ? "" : "\n") + text;
  }

 private:
  std::string where_;
  std::map<std::string, std::string> cells_;
};

inline std::vector<Row> table(const std::string& name) {
  const std::string file = ZERO_SOURCE_DIR "/tests/tables/" + name + ".txt";
  std::ifstream in(file);
  std::vector<std::string> columns;
  std::vector<Row> rows;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.starts_with('#')) continue;
    const std::vector<std::string> cells = parts_of(line, "|");
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    if (!line.starts_with(' ')) rows.emplace_back(file + ":" + std::to_string(number));
    for (std::size_t i = 0; i < cells.size(); ++i) rows.back().add(columns.at(i), cells[i]);
  }
  if (rows.empty()) throw std::runtime_error(file + " has no rows");
  return rows;
}

}  // namespace golden
