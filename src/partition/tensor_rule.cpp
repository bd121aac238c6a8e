#include "zero/tensor_rule.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/paths.h"
#include "base/text.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::string_view kAnywhere = "*.";  // in front of a path

enum class Style : std::uint8_t { outputs, inputs, column, row, none };

constexpr auto kStyles =
    std::to_array<std::pair<std::string_view, Style>>({{"colwise", Style::outputs},
                                                       {"colwise_rep", Style::outputs},
                                                       {"colwise_gather_output", Style::outputs},
                                                       {"packed_colwise", Style::outputs},
                                                       {"local_colwise", Style::outputs},
                                                       {"rowwise", Style::inputs},
                                                       {"rowwise_rep", Style::inputs},
                                                       {"rowwise_split_input", Style::inputs},
                                                       {"embedding_rowwise", Style::column},
                                                       {"packed_rowwise", Style::inputs},
                                                       {"local_rowwise", Style::inputs},
                                                       {"column", Style::column},
                                                       {"row", Style::row},
                                                       {"sequence_parallel", Style::none},
                                                       {"replicated_with_grad_allreduce", Style::none},
                                                       {"gather", Style::none},
                                                       {"local", Style::none},
                                                       {"whole", Style::none}});

std::vector<std::string_view> names_of_styles() {
  std::vector<std::string_view> names;
  for (const auto& [name, style] : kStyles) names.push_back(name);
  return names;
}

// A table's rows are what its outputs are added up from.
std::optional<TensorCut> cut_of(Style style, bool embedding) {
  switch (style) {
    case Style::outputs: return embedding ? TensorCut::row : TensorCut::column;
    case Style::inputs: return embedding ? TensorCut::column : TensorCut::row;
    case Style::column: return TensorCut::column;
    case Style::row: return TensorCut::row;
    case Style::none: return {};
  }
  return {};
}

std::string_view module_of(const ParameterInfo& parameter) {
  const std::string_view name(parameter.name);
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

}  // namespace

TensorRule tensor_named(std::vector<std::pair<std::string, TensorCut>> modules) {
  return [modules = std::move(modules)](const ParameterInfo& parameter) -> std::optional<TensorCut> {
    for (const auto& [pattern, cut] : modules)
      if (path_ends_as(pattern, module_of(parameter))) return cut;
    return {};
  };
}

TensorRule tensor_plan(const std::vector<std::pair<std::string, std::string>>& plan) {
  std::vector<std::pair<std::string, Style>> styles;
  for (const auto& [module, style] : plan) {
    const auto found = std::ranges::find(kStyles, style, &std::pair<std::string_view, Style>::first);
    if (found == kStyles.end())
      throw ConfigError("tensor_plan(): the style " + in_quotes(style) + " of " + in_quotes(module) + " is not known",
                        "use one of " + joined(names_of_styles()));
    styles.emplace_back(module.starts_with(kAnywhere) ? module : std::string(kAnywhere) + module, found->second);
  }
  return [styles = std::move(styles)](const ParameterInfo& parameter) -> std::optional<TensorCut> {
    const auto named = [&](const auto& each) { return each.first.substr(kAnywhere.size()) == parameter.name; };
    if (const auto found = std::ranges::find_if(styles, named); found != styles.end())
      return cut_of(found->second, parameter.embedding);
    const auto takes = [&](const auto& each) {
      return path_ends_as(each.first, module_of(parameter)) || path_ends_as(each.first, parameter.name);
    };
    const auto found = std::ranges::find_if(styles, takes);
    return found == styles.end() ? std::nullopt : cut_of(found->second, parameter.embedding);
  };
}

}  // namespace zero
