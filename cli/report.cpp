#include "report.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "format.h"
#include "zero/error.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

double number(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

std::vector<double> numbers(const Json& json) {
  std::vector<double> result;
  for (const Json& value : json) result.push_back(number(value));
  return result;
}

Json encode(const Bytes& bytes) {
  return {{"predicted", bytes.predicted}, {"measured", bytes.measured}};
}

Bytes decode_bytes(const Json& json) {
  return {json.at("predicted"), json.at("measured")};
}

Json encode(const RunResult& run) {
  Json evaluations = Json::array();
  for (const Evaluation& each : run.evaluations) evaluations.push_back({{"step", each.step}, {"loss", each.loss}});
  return {{"plan", run.plan},
          {"optimizer", run.optimizer_name},
          {"precision", run.precision},
          {"losses", run.losses},
          {"grad_norms", run.grad_norms},
          {"evaluations", evaluations},
          {"state_bytes",
           {{"parameter", encode(run.parameter)},
            {"gradient", encode(run.gradient)},
            {"optimizer", encode(run.optimizer)}}},
          {"wire_bytes_per_step", encode(run.wire)},
          {"peak_bytes", run.peak_bytes},
          {"update_bytes", run.update_bytes},
          {"update_seconds", run.update_seconds ? Json(*run.update_seconds) : Json()},
          {"step_seconds", run.step_seconds},
          {"tokens_per_second", run.tokens_per_second}};
}

RunResult decode_run(const Json& json) {
  RunResult run;
  run.plan = json.at("plan");
  run.optimizer_name = json.at("optimizer");
  run.precision = json.at("precision");
  run.losses = numbers(json.at("losses"));
  run.grad_norms = numbers(json.at("grad_norms"));
  for (const Json& each : json.at("evaluations")) run.evaluations.push_back({each.at("step"), number(each.at("loss"))});
  const Json& state = json.at("state_bytes");
  run.parameter = decode_bytes(state.at("parameter"));
  run.gradient = decode_bytes(state.at("gradient"));
  run.optimizer = decode_bytes(state.at("optimizer"));
  run.wire = decode_bytes(json.at("wire_bytes_per_step"));
  run.peak_bytes = json.at("peak_bytes");
  run.update_bytes = json.at("update_bytes");
  const Json& update_seconds = json.at("update_seconds");
  if (!update_seconds.is_null()) run.update_seconds = update_seconds.get<double>();
  run.step_seconds = number(json.at("step_seconds"));
  run.tokens_per_second = number(json.at("tokens_per_second"));
  return run;
}

[[noreturn]] void cannot(const char* verb, const std::string& path) {
  throw zero::Error(std::string("cannot ") + verb + " '" + path + "': " + std::strerror(errno));
}

// A pipe or a terminal is written as it is.
bool special(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp" + std::to_string(::getpid())) {
    if (std::filesystem::is_directory(path_)) errno = EISDIR, cannot("write", path_);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) cannot("write", path_);
  }
  ~NewFile() {
    ::close(fd_);
    if (!kept_) ::unlink(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(fd_, text.data(), text.size());
      if (written < 0 && errno != EINTR) cannot("write", path_);
      if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  void keep() {
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) cannot("write", path_);
    kept_ = true;
  }

 private:
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  bool kept_ = false;
};

std::size_t first_difference(const std::vector<double>& a, const std::vector<double>& b) {
  const auto same = [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  };
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end(), same);
  return at.first == a.end() && at.second == b.end() ? 0 : static_cast<std::size_t>(at.first - a.begin()) + 1;
}

std::string heading(const Report& report) {
  return std::to_string(report.ranks) + (report.ranks == 1 ? " rank, " : " ranks, ") +
         with_separators(report.parameters) + " parameters, " +
         (report.precision.empty() ? "" : report.precision + ", ") + std::to_string(report.runs.front().losses.size()) +
         " steps";
}

std::string last_loss(const RunResult& run) {
  return run.losses.empty() ? "-" : shortest(run.losses.back());
}

void add_bytes(Table& table, const std::string& plan, const char* what, const Bytes& bytes) {
  table.add(
      {plan, what, with_separators(bytes.predicted), with_separators(bytes.measured), bytes.agree() ? "" : "differs"});
}

std::int64_t state_bytes(const RunResult& run) {
  return run.parameter.measured + run.gradient.measured + run.optimizer.measured;
}

void print_bytes(std::ostream& out, const Report& report) {
  Table table(2);
  table.add({"plan", "bytes per rank", "predicted", "measured", ""});
  for (const RunResult& run : report.runs) {
    add_bytes(table, run.plan, "parameter", run.parameter);
    add_bytes(table, "", "gradient", run.gradient);
    add_bytes(table, "", "optimizer", run.optimizer);
    add_bytes(table, "", "wire, each step", run.wire);
  }
  table.print(out);
}

void print_costs(std::ostream& out, const Report& report) {
  const auto first = static_cast<double>(state_bytes(report.runs.front()));
  Table table(1);
  table.add({"plan", "state", "of " + report.runs.front().plan, "peak process", "s/step", "tokens/s", "last loss"});
  for (const RunResult& run : report.runs) {
    const std::string part = fixed(100 * static_cast<double>(state_bytes(run)) / first, 1) + " %";
    table.add({run.plan, human_bytes(state_bytes(run)), part, human_bytes(run.peak_bytes), fixed(run.step_seconds, 3),
               fixed(run.tokens_per_second, 0), last_loss(run)});
  }
  table.print(out);
}

std::string agreement(const RunResult& run) {
  if (!run.optimizer.agree()) return "differs";
  return run.bytes_agree() ? "" : "other bytes differ";
}

std::string bandwidth(const RunResult& run) {
  return run.update_seconds ? fixed(static_cast<double>(run.update_bytes) / *run.update_seconds / 1e9, 2) : "-";
}

std::vector<std::string> optimizer_cells(const RunResult& run, double held) {
  const auto each = [held](std::int64_t bytes) { return fixed(static_cast<double>(bytes) / held, 2); };
  return {run.optimizer_name,
          with_separators(run.optimizer.predicted),
          with_separators(run.optimizer.measured),
          each(run.optimizer.predicted),
          each(run.optimizer.measured),
          bandwidth(run),
          fixed(run.step_seconds, 3),
          last_loss(run),
          agreement(run)};
}

}  // namespace

std::string to_json(const Report& report) {
  Json runs = Json::array();
  for (const RunResult& run : report.runs) runs.push_back(encode(run));
  Json json{{"ranks", report.ranks}, {"parameters", report.parameters}};
  if (!report.precision.empty()) json["precision"] = report.precision;
  json["runs"] = runs;
  return json.dump(2) + "\n";
}

Report from_json(const std::string& text) {
  const Json json = Json::parse(text);
  Report report{json.at("ranks"), json.at("parameters"), json.value("precision", ""), {}};
  for (const Json& run : json.at("runs")) report.runs.push_back(decode_run(run));
  return report;
}

void check_writable(const std::string& path) {
  if (!special(path)) NewFile probe(path);
}

void write_file(const std::string& path, const std::string& text) {
  if (special(path)) {
    std::ofstream(path) << text;
    return;
  }
  NewFile file(path);
  file.write(text);
  file.keep();
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) cannot("read", path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void Table::print(std::ostream& out) const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += (i ? "  " : "") + (static_cast<int>(i) < left_ ? row[i] + padding : padding + row[i]);
    }
    out << line.substr(0, line.find_last_not_of(' ') + 1) << '\n';
  }
}

void print_report(std::ostream& out, const Report& report) {
  out << heading(report) << "\n\n";
  print_bytes(out, report);
  out << '\n';
  print_costs(out, report);
  out << '\n';
}

void print_optimizers(std::ostream& out, const Report& report, double held) {
  const bool several = report.precision.empty();
  Table table(several ? 2 : 1);
  const auto add = [&](const std::string& precision, std::vector<std::string> cells) {
    if (several) cells.insert(cells.begin() + 1, precision);
    table.add(std::move(cells));
  };
  add("precision", {"optimizer", "state of a rank, predicted", "measured", "of a parameter, predicted", "measured",
                    "update, GB/s", "s/step", "last loss", ""});
  for (const RunResult& run : report.runs) add(run.precision, optimizer_cells(run, held));
  out << heading(report) << ", " << report.runs.front().plan << "; state in bytes, with padding\n\n";
  table.print(out);
  out << '\n';
}

std::vector<Difference> differences(const Report& report, const std::vector<int>& groups) {
  std::vector<Difference> result;
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    const auto first = static_cast<std::size_t>(std::find(groups.begin(), groups.end(), groups[i]) - groups.begin());
    const std::size_t step = first_difference(report.runs[first].losses, report.runs[i].losses);
    if (step) result.push_back({report.runs[i].plan, report.runs[first].plan, step});
  }
  return result;
}

}  // namespace cli
