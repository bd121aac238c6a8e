#include "cli/processes/relay.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace cli {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 20;
constexpr const char* kEnds = "\n\r";

// How much of `text` its first line is, with its end.
std::size_t line_length(std::string_view text) {
  const std::size_t end = text.find_first_of(kEnds);
  if (end == text.npos) return text.size();
  return end + (text.substr(end).starts_with("\r\n") ? 2 : 1);
}

bool returns(std::string_view text) {
  return text.ends_with('\r');
}

}  // namespace

Relay::Output& Relay::output(int to) {
  return outputs_.try_emplace(to, Output{Sink(to)}).first->second;
}

zero::Descriptor Relay::open(std::string prefix, int to) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return zero::Descriptor();
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  sources_.push_back({zero::Descriptor(ends[0]), &output(to), std::move(prefix), {}});
  return zero::Descriptor(ends[1]);
}

void Relay::say(int to, std::string_view line) {
  Output& place = output(to);
  if (std::exchange(place.returned, nullptr)) place.sink.put("\n");
  place.sink.put(line);
}

void Relay::watch(std::vector<pollfd>& polled) const {
  for (const auto& [to, output] : outputs_) output.sink.watch(polled);
  for (const Source& source : sources_)
    if (source.pipe && !source.output->sink.full()) polled.push_back({source.pipe.get(), POLLIN, 0});
}

// Another's progress is not written over: it gets the line end that it did without. The two characters of "\r\n" may
// come apart.
void Relay::emit(Source& source, std::size_t end) {
  std::string_view rest(source.pending.data(), end);
  const Source*& last = source.output->returned;
  std::string text;
  if (source.returned && rest.starts_with('\n')) {
    if (last == &source) text = '\n', last = nullptr;
    rest.remove_prefix(1);
  }
  if (!rest.empty() && last && last != &source) text += '\n';
  while (!rest.empty()) {
    const std::size_t length = line_length(rest);
    text.append(source.prefix).append(rest.substr(0, length));
    rest.remove_prefix(length);
  }
  if (end > 0 && source.pending.find_last_of(kEnds, end - 1) != end - 1) text += '\n';
  source.returned = returns(text);
  if (!text.empty()) last = source.returned ? &source : nullptr;
  source.pending.erase(0, end);
  source.output->sink.put(text);
}

void Relay::read_some(Source& source, bool last) {
  char buffer[65536];
  const ssize_t got = ::read(source.pipe.get(), buffer, sizeof buffer);
  if (got > 0) {
    source.pending.append(buffer, static_cast<std::size_t>(got));
    const std::size_t end = source.pending.find_last_of(kEnds);
    if (end != std::string::npos) emit(source, end + 1);
    if (source.pending.size() > kLongestLine) emit(source, source.pending.size());
  } else if (got == 0 || (last && errno != EINTR) || (errno != EINTR && errno != EAGAIN)) {
    source.pipe = zero::Descriptor();
    emit(source, source.pending.size());
  }
}

void Relay::write() {
  for (auto& [to, output] : outputs_) output.sink.pump();
}

// A little of each in turn, so that no source has all the room.
void Relay::pump() {
  write();
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[(first_ + i) % sources_.size()];
    if (source.pipe && !source.output->sink.full()) read_some(source, false);
  }
  if (!sources_.empty()) first_ = (first_ + 1) % sources_.size();
  write();
}

bool Relay::finish() {
  write();
  for (Source& source : sources_)
    while (source.pipe && !source.output->sink.full()) read_some(source, true);
  write();
  return std::ranges::none_of(sources_, [](const Source& source) { return bool(source.pipe); }) &&
         std::ranges::all_of(outputs_, [](const auto& each) { return each.second.sink.waiting() == 0; });
}

int Relay::error(int to) const {
  const auto found = outputs_.find(to);
  return found == outputs_.end() ? 0 : found->second.sink.error();
}

std::size_t Relay::unwritten() const {
  std::size_t bytes = 0;
  for (const auto& [to, output] : outputs_) bytes += output.sink.waiting();
  for (const Source& source : sources_) {
    int in_pipe = 0;
    if (source.pipe && ::ioctl(source.pipe.get(), FIONREAD, &in_pipe) == 0) bytes += static_cast<std::size_t>(in_pipe);
    bytes += source.pending.size();
  }
  return bytes;
}

}  // namespace cli
