// Tables of text, for people.
#pragma once

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

namespace cli {

// Columns are as wide as their widest cell, the first `left` aligned to the left, the others to the right. Where that
// is more than kWidest in all, what heads a column, its first row, and then cells on the left are broken into lines:
// after commas, else between words.
class Table {
 public:
  static constexpr std::size_t kWidest = 100;

  explicit Table(int left) : left_(static_cast<std::size_t>(left)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  void print(std::ostream& out) const;

 private:
  std::vector<std::size_t> widths() const;

  std::size_t left_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cli
