// Where a model is trained or evaluated, as --device says it. No torch.
#pragma once

#include <string>
#include <string_view>

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
class Option;
}  // namespace CLI

namespace cli {

// A kind, as LibTorch calls it, or a kind and an index: "cpu", "cuda", "cuda:1". Whether there is such a device is
// known with LibTorch only.
struct DeviceName {
  std::string kind;
  int index = -1;  // -1: not given
};

// Throws zero::ConfigError for what does not have this form.
DeviceName device_named(std::string_view text);

bool on_host(const std::string& device);

CLI::Option* add_device(CLI::App& command, std::string& device, const std::string& group);

}  // namespace cli
