#include "cli/options/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <vector>

#include "base/text.h"

namespace cli {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kIndent = 28;

// `text` behind `head`, from column `indent` on; below it where the head reaches as far.
std::string in_columns(const std::string& head, const std::string& text, std::size_t indent) {
  std::string result, line = head;
  const auto next_line = [&] {
    result += line + "\n";
    line.clear();
  };
  if (line.size() >= indent && indent > 0) next_line();
  line.resize(std::max(line.size(), indent), ' ');
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && line.size() + 1 + word.size() > kColumns) {
      next_line();
      line.assign(indent, ' ');
      first = true;
    }
    line += (first ? "" : " ") + word;
  }
  next_line();
  return result;
}

template <class Options>
std::string names(const Options& options) {
  std::string list;
  for (const CLI::Option* each : options) list += (list.empty() ? "" : ", ") + each->get_name();
  return list;
}

class Format : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool positional) const override {
    std::string head = "  " + make_option_name(option, positional), text = option->get_description();
    if (option->get_type_size() != 0) head += " " + option->get_type_name();
    if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
    if (option->get_required()) text += "; required";
    if (!option->get_needs().empty()) text += "; with " + names(option->get_needs());
    if (!option->get_excludes().empty()) text += "; not with " + names(option->get_excludes());
    return in_columns(head, text, kIndent);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return in_columns("  " + command->get_display_name(), command->get_description(), kIndent);
  }
  std::string make_usage(const CLI::App* command, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(command, std::move(name));
    if (!command->get_prefix_command()) return usage;
    return usage.substr(0, usage.find_last_not_of('\n') + 1) + " PROGRAM [ARGUMENT...]\n";
  }
  std::string make_description(const CLI::App* command) const override {
    return in_columns("", command->get_description(), 0);
  }
};

std::vector<std::string> words_of(const CLI::App& command, bool options) {
  std::vector<std::string> words;
  if (!options)
    for (const CLI::App* each : command.get_subcommands([](const CLI::App*) { return true; }))
      words.push_back(each->get_name());
  if (options)
    for (const CLI::Option* each : command.get_options())
      for (const std::string& name : each->get_lnames()) words.push_back("--" + name);
  return words;
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_format() {
  return std::make_shared<Format>();
}

std::string unknown_option(const CLI::App& command, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  return "unknown option " + zero::in_quotes(name) + zero::did_you_mean(name, words_of(command, true));
}

std::string unknown_word(const CLI::App& app) {
  const CLI::App* command = &app;
  while (command->remaining().empty() && !command->get_subcommands().empty())
    command = command->get_subcommands().front();
  const std::vector<std::string> words = command->remaining();
  if (words.empty() || command->get_prefix_command()) return {};
  const auto option = std::ranges::find_if(words, [](const std::string& word) { return word.starts_with('-'); });
  if (option != words.end()) return unknown_option(*command, *option);
  const std::vector<std::string> known = words_of(*command, false);
  const std::string& word = words.front();
  return (known.empty() ? "unexpected argument " : "unknown command ") + zero::in_quotes(word) +
         zero::did_you_mean(word, known);
}

}  // namespace cli
