#include "zero/safetensors.h"

namespace zero {

TensorNames::TensorNames(std::map<std::string, std::string> names)
    : name_([names = std::move(names)](const std::string& name) {
        const auto found = names.find(name);
        return found == names.end() ? name : found->second;
      }) {}

}  // namespace zero
