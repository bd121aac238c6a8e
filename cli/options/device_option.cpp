#include "cli/options/device_option.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/number.h"
#include "base/text.h"
#include "cli/options/validators.h"

namespace cli {
namespace {

constexpr unsigned kHighestIndex = 127;  // of LibTorch's

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || c == '_';
}

}  // namespace

DeviceName device_named(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string kind(text.substr(0, colon));
  if (kind.empty() || !std::ranges::all_of(kind, is_letter))
    throw zero::ConfigError(zero::in_quotes(text) + " is not the name of a device: write cpu, cuda or cuda:1");
  if (colon == text.npos) return {kind};
  const auto index = zero::read_number<unsigned>(text.substr(colon + 1), 0, kHighestIndex);
  if (!index.fault.empty()) throw zero::ConfigError(zero::in_quotes(text) + ": the index " + index.fault);
  return {kind, static_cast<int>(index.value)};
}

bool on_host(const std::string& device) {
  return device_named(device).kind == "cpu";
}

CLI::Option* add_device(CLI::App& command, std::string& device, const std::string& group) {
  return add_read(command, "--device", device, "cpu, cuda (a GPU a rank) or cuda:1 [a GPU where there is one]",
                  device_named, "DEVICE", group);
}

}  // namespace cli
