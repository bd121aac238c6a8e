#include "cli/options/validators.h"

#include <algorithm>

#include "planner/quantity.h"

namespace cli {
std::string validators_detail::long_name(const std::string& names) {
  return names.substr(names.find("--"));
}

CLI::Option* add_restarts(CLI::App& command, int& restarts, const std::string& group) {
  constexpr int most = 1000;
  return add_number(command, "--restarts", restarts, "Start all ranks again where one fails, so often within an hour",
                    0, most)
      ->group(group);
}

CLI::Option* add_data(CLI::App& command, std::string& data, int& tokens, const std::string& group) {
  CLI::Option* const option =
      add_path(command, "--data", data, "File or folder, read as bytes of text; *.bin and *.u32 hold tokens")
          ->group(group);
  add_number(command, "--tokens", tokens, "Bits of a token in the token file --data: 16 or 32", 16, 32)
      ->check(choice({"16", "32"}))
      ->default_str("")
      ->group(group);
  return option;
}

void add_json(CLI::App& command, std::string& path, const std::string& what) {
  add_path(command, "--json", path, "Also write " + what + " to this file; - is standard output alone")
      ->group("Output");
  command.set_help_flag("-h,--help", "Print this help")->group("Output");
}

CLI::Option* add_size(CLI::App& command, const std::string& name, std::uint64_t& value, const std::string& text) {
  const auto read = [&value, name](const std::string& given) {
    try {
      value = static_cast<std::uint64_t>(planner::bytes_of(given, 0));
    } catch (const zero::ConfigError& error) {
      throw UsageError(name + ": " + error.what());
    }
  };
  return command.add_option_function<std::string>(name, read, text)->type_name("SIZE")->default_str(cli::text(value));
}

std::vector<std::string> texts(const std::vector<std::string_view>& names) {
  return {names.begin(), names.end()};
}

CLI::Validator choice(const std::vector<std::string>& names) {
  return CLI::Validator(
      [names](const std::string& given) -> std::string {
        if (std::ranges::count(names, given)) return {};
        return zero::in_quotes(given) + " is not one of " + zero::joined(names) + zero::did_you_mean(given, names);
      },
      "", "");
}

std::string with_choices(const std::string& text, const std::vector<std::string>& names) {
  return text + ": " + zero::joined(names);
}

CLI::Option* add_choice(CLI::App& command, const std::string& name, std::string& value, const std::string& text,
                        const std::vector<std::string>& names) {
  return command.add_option(name, value, with_choices(text, names))->check(choice(names))->capture_default_str();
}

CLI::Option* add_choice(CLI::App& command, const std::string& name, std::optional<std::string>& value,
                        const std::string& text, const std::vector<std::string>& names) {
  return command.add_option(name, value, with_choices(text, names))->check(choice(names));
}

CLI::Option* add_choices(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                         const std::string& text, const std::vector<std::string>& names) {
  return command.add_option(name, values, with_choices(text, names))
      ->delimiter(',')
      ->check(choice(names))
      ->default_str(zero::joined(values));
}

CLI::Option* add_path(CLI::App& command, const std::string& name, std::string& value, const std::string& text,
                      const char* type) {
  const auto filled = CLI::Validator(
      [](const std::string& given) { return given.empty() ? std::string("the name is empty") : std::string(); }, "",
      "");
  return command.add_option(name, value, text)->check(filled)->type_name(type);
}

}  // namespace cli
