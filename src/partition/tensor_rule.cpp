#include "zero/tensor_rule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/paths.h"
#include "base/text.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::string_view kAnywhere = "*.";  // in front of a path

enum class Way : std::uint8_t { outputs, inputs, column, row, none };

struct Style {
  Way way = Way::none;
  std::int64_t blocks = 1;
};

constexpr auto kStyles = std::to_array<std::pair<std::string_view, Style>>({{"colwise", {Way::outputs}},
                                                                            {"colwise_rep", {Way::outputs}},
                                                                            {"colwise_gather_output", {Way::outputs}},
                                                                            {"packed_colwise", {Way::outputs, 2}},
                                                                            {"local_colwise", {Way::outputs}},
                                                                            {"rowwise", {Way::inputs}},
                                                                            {"rowwise_rep", {Way::inputs}},
                                                                            {"rowwise_split_input", {Way::inputs}},
                                                                            {"embedding_rowwise", {Way::column}},
                                                                            {"packed_rowwise", {Way::inputs, 2}},
                                                                            {"local_rowwise", {Way::inputs}},
                                                                            {"column", {Way::column}},
                                                                            {"row", {Way::row}},
                                                                            {"sequence_parallel", {}},
                                                                            {"replicated_with_grad_allreduce", {}},
                                                                            {"gather", {}},
                                                                            {"local", {}},
                                                                            {"whole", {}}});

std::vector<std::string_view> names_of_styles() {
  std::vector<std::string_view> names;
  for (const auto& [name, style] : kStyles) names.push_back(name);
  return names;
}

// "column/3" is "column", in three blocks.
std::optional<Style> style_of(std::string_view text) {
  const std::size_t slash = std::min(text.find('/'), text.size());
  const auto found = std::ranges::find(kStyles, text.substr(0, slash), &std::pair<std::string_view, Style>::first);
  if (found == kStyles.end()) return {};
  Style style = found->second;
  if (slash == text.size()) return style;
  const char *const begin = text.data() + slash + 1, *const end = text.data() + text.size();
  const auto [last, fault] = std::from_chars(begin, end, style.blocks);
  return fault == std::errc() && last == end && style.blocks > 0 ? std::optional(style) : std::nullopt;
}

// A table's rows are what its outputs are added up from.
std::optional<TensorCut> cut_of(const Style& style, bool embedding) {
  const auto cut = [&](bool rows) { return (rows ? TensorCut::row : TensorCut::column).in_blocks(style.blocks); };
  switch (style.way) {
    case Way::outputs: return cut(embedding);
    case Way::inputs: return cut(!embedding);
    case Way::column: return cut(false);
    case Way::row: return cut(true);
    case Way::none: return {};
  }
  return {};
}

std::string_view module_of(const ParameterInfo& parameter) {
  const std::string_view name(parameter.name);
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

}  // namespace

std::string name(const TensorCut& cut) {
  const std::string dimension = cut.dim == 0 ? "column" : cut.dim == 1 ? "row" : "dimension " + std::to_string(cut.dim);
  return dimension + (cut.blocks > 1 ? "/" + std::to_string(cut.blocks) : "");
}

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
    const auto known = style_of(style);
    if (!known)
      throw ConfigError("tensor_plan(): the style " + in_quotes(style) + " of " + in_quotes(module) + " is not known",
                        "use one of " + joined(names_of_styles()));
    styles.emplace_back(module.starts_with(kAnywhere) ? module : std::string(kAnywhere) + module, *known);
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
