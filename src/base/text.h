// Numbers and what others wrote, in words.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

// As few digits as give the same bits when read.
inline std::string shortest(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr};
}

inline std::string fixed(double value, int digits) {
  std::array<char, 400> text{};
  return {text.data(), std::to_chars(text.begin(), text.end(), value, std::chars_format::fixed, digits).ptr};
}

// So many digits at most.
inline std::string significant(double value, int digits) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.begin(), text.end(), value, std::chars_format::general, digits).ptr};
}

// "a, b, c".
std::string joined(const auto& words, std::string_view separator = ", ") {
  std::string text;
  for (const auto& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

// "0.5, 1".
inline std::string shortest(std::span<const double> values) {
  std::vector<std::string> words;
  for (const double value : values) words.push_back(shortest(value));
  return joined(words);
}

// "[1, 2, 3]".
inline std::string listed(std::span<const std::int64_t> numbers) {
  std::vector<std::string> words;
  for (const std::int64_t number : numbers) words.push_back(std::to_string(number));
  return "[" + joined(words) + "]";
}

// Of ASCII's letters.
inline std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// The path of what a module, or a section, at `path` has by that name; that of the root is empty.
inline std::string path_of(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

namespace text_detail {

// Bytes of the character that `text` begins with; 0 where it is none of UTF-8, or one that only controls a terminal.
inline std::size_t printable_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return byte(0) == 0xc2 && byte(1) < 0xa0 ? 0 : length;
}

inline std::string escape(char c) {
  constexpr const char* digits = "0123456789abcdef";
  if (c == '\n') return "\\n";
  if (c == '\t') return "\\t";
  if (c == '\r') return "\\r";
  const auto byte = static_cast<unsigned char>(c);
  return {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
}

// Characters, or what stands for them.
inline std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> result;
  while (!text.empty()) {
    const std::size_t length = printable_length(text);
    result.push_back(length ? std::string(text.substr(0, length)) : escape(text.front()));
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

}  // namespace text_detail

// Without what would move a terminal's cursor or change its colours.
inline std::string escaped(std::string_view text) {
  std::string result;
  for (const std::string& each : text_detail::characters(text)) result += each;
  return result;
}

// What somebody else wrote, to be shown in a message: escaped, and where it is long without its middle.
inline std::string shown(std::string_view text) {
  constexpr std::size_t begin = 80, end = 40;
  const std::vector<std::string> all = text_detail::characters(text);
  std::string result;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all.size() > begin + end && i == begin) result += "...", i = all.size() - end;
    result += all[i];
  }
  return result;
}

inline std::string in_quotes(std::string_view text, char mark = '\'') {
  return mark + shown(text) + mark;
}

// How many letters must be put in, left out, exchanged or swapped with their neighbour to make one word the other.
inline std::size_t letters_apart(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// "; did you mean 'X'?" for the one of `known` that `word` begins, or that differs in a third of its letters at most;
// nothing where there is none.
inline std::string did_you_mean(std::string_view word, std::span<const std::string> known) {
  constexpr std::size_t longest = 40;
  if (word.empty() || word.size() > longest) return {};
  const auto apart = [&](std::string_view each) {
    return word.size() >= 3 && each.starts_with(word) ? 1 : letters_apart(word, each);
  };
  const auto best = std::ranges::min_element(known, {}, apart);
  if (best == known.end() || apart(*best) > std::max<std::size_t>(1, best->size() / 3)) return {};
  return "; did you mean " + in_quotes(*best) + "?";
}

}  // namespace zero
