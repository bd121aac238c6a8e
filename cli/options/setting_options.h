// A plan's settings as options, those of its table, and as a file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/options/options.h"
#include "partition/plan_settings.h"

namespace CLI {  // NOLINT(readability-identifier-naming)
class Option;
}

namespace cli {

// One of them. `help`: instead of the table's, and of the default, which then is another one.
CLI::Option* add_setting(CLI::App& command, zero::PlanSettings& settings, std::string_view name,
                         const std::string& group, const std::string& help = {});
// --shard-ranks, and all settings but those that stand elsewhere in a command's help: how computing is done.
void add_exchange_options(CLI::App& command, SharedOptions& options, const std::string& group);
// --recompute and --loss-pieces, which are the model's.
void add_activation_options(CLI::App& command, SharedOptions& options, const std::string& group);

// Whether this is the name of such an option.
bool is_setting(std::string_view option);

// Throws UsageError.
[[noreturn]] void contradict(const std::string& option, const std::string& given, const std::string& source,
                             const std::string& read);
// What two places say together, of which `source` is the other. Throws UsageError, naming the option, where they say
// two things; a flag is on where either says so.
zero::PlanSettings agreed(const zero::PlanSettings& given, const zero::PlanSettings& read, const std::string& source);

// Where --plan names no preset it names a plan file, whose setting the options take. Throws UsageError for a name that
// is neither, and where an option that was given says something else than the file.
void take_plan_file(const CLI::App& command, RunOptions& options);

// Arguments that say them, where they are not the default.
std::vector<std::string> arguments_of(const zero::PlanSettings& settings);

}  // namespace cli
