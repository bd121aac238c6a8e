// What --help prints, and what is said of words that are none of ours.
#pragma once

#include <memory>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
class FormatterBase;
}  // namespace CLI

namespace cli {

// Lines of at most 80 columns.
std::shared_ptr<CLI::FormatterBase> help_format();

// Of what `app` or one of its commands was given and does not know, with the name that may have been meant; empty where
// it knows all.
std::string unknown_word(const CLI::App& app);
// The same of one option of a command.
std::string unknown_option(const CLI::App& command, const std::string& word);

}  // namespace cli
