#include "cli/report/table.h"

#include <algorithm>
#include <numeric>
#include <ostream>
#include <sstream>
#include <string_view>

namespace cli {
namespace {

constexpr std::string_view kGap = "  ";     // between columns
constexpr std::string_view kIndent = "  ";  // of a cell's lines after its first, on the left

using Sizes = std::vector<std::size_t>;
using Strings = std::vector<std::string>;

// UTF-8 characters, each of which is one column wide.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

Strings words_of(const std::string& text) {
  std::istringstream in(text);
  Strings words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::size_t longest_word(const std::string& text) {
  std::size_t most = 0;
  for (const std::string& word : words_of(text)) most = std::max(most, width_of(word));
  return most;
}

// "zero3,", "all on disk"
Strings parts_of(const std::string& text) {
  Strings parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t comma = text.find(", ", begin);
    const std::size_t end = comma == text.npos ? text.size() : comma + 1;
    parts.push_back(text.substr(begin, end - begin));
    begin = comma == text.npos ? end : end + 1;
  }
  return parts;
}

// Lines of a cell that is to be at most so wide, where its words are: a part goes on where it fits, else begins a line.
Strings broken(const std::string& text, std::size_t width, std::string_view indent) {
  if (width_of(text) <= width) return {text};
  Strings lines;
  const auto begin = [&](const std::string& piece) {
    lines.push_back((lines.empty() ? "" : std::string(indent)) + piece);
  };
  const auto goes_on = [&](const std::string& piece) {
    const bool fits = !lines.empty() && width_of(lines.back()) + 1 + width_of(piece) <= width;
    if (fits) lines.back() += " " + piece;
    return fits;
  };
  for (const std::string& part : parts_of(text)) {
    if (goes_on(part)) continue;
    const Strings words = words_of(part);
    for (std::size_t i = 0; i < words.size(); ++i)
      if (i == 0 || !goes_on(words[i])) begin(words[i]);
  }
  return lines;
}

std::size_t total(const Sizes& widths) {
  return std::accumulate(widths.begin(), widths.end(), std::size_t{0}) +
         kGap.size() * (widths.empty() ? 0 : widths.size() - 1);
}

// Takes from the columns that can give most, until all fit or none can give more.
void narrow(Sizes& widths, const Sizes& least) {
  for (;;) {
    const std::size_t now = total(widths);
    std::size_t best = 0, most = 0;
    for (std::size_t i = 0; i < widths.size(); ++i)
      if (widths[i] > least[i] && widths[i] - least[i] > most) best = i, most = widths[i] - least[i];
    if (now <= Table::kWidest || most == 0) return;
    widths[best] -= std::min(most, now - Table::kWidest);
  }
}

}  // namespace

std::vector<std::size_t> Table::widths() const {
  Sizes widths, below, least;  // all rows; all but the first; longest words
  for (const Strings& row : rows_) {
    for (Sizes* const sizes : {&widths, &below, &least}) sizes->resize(std::max(sizes->size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool head = &row == &rows_.front();
      const std::size_t word = longest_word(row[i]), all = width_of(row[i]);
      widths[i] = std::max(widths[i], all);
      below[i] = std::max(below[i], head ? word : all);
      least[i] = std::max(least[i], word == all ? all : word + kIndent.size());
    }
  }
  narrow(widths, below);
  for (std::size_t i = left_; i < least.size(); ++i) least[i] = widths[i];
  narrow(widths, least);
  return widths;
}

void Table::print(std::ostream& out) const {
  const Sizes most = widths();
  Sizes widths(most.size());  // of the lines that cells are broken into
  std::vector<std::vector<Strings>> rows;
  for (const Strings& row : rows_) {
    std::vector<Strings>& cells = rows.emplace_back();
    for (std::size_t i = 0; i < row.size(); ++i) {
      cells.push_back(broken(row[i], most[i], i < left_ ? kIndent : ""));
      for (const std::string& line : cells[i]) widths[i] = std::max(widths[i], width_of(line));
    }
  }
  for (const std::vector<Strings>& cells : rows) {
    std::size_t height = 1;
    for (const Strings& cell : cells) height = std::max(height, cell.size());
    for (std::size_t line = 0; line < height; ++line) {
      std::string text;
      for (std::size_t i = 0; i < cells.size(); ++i) {
        const std::size_t above = &cells == &rows.front() ? height - cells[i].size() : 0;
        const bool any = line >= above && line - above < cells[i].size();
        const std::string cell = any ? cells[i][line - above] : "";
        const std::string padding(widths[i] - width_of(cell), ' ');
        text += std::string(i ? kGap : "") + (i < left_ ? cell + padding : padding + cell);
      }
      out << text.substr(0, text.find_last_not_of(' ') + 1) << '\n';
    }
  }
}

}  // namespace cli
