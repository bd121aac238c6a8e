#include "models/data.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "zero/error.h"

namespace models {
namespace {

// The finalizer of splitmix64: every bit of the result depends on every bit of `x`.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A Feistel network: a bijection of the numbers of 2 * half bits.
std::uint64_t shuffle(std::uint64_t x, int half, std::uint64_t key) {
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  std::uint64_t left = x >> half;
  std::uint64_t right = x & mask;
  for (std::uint64_t round = 0; round < 6; ++round)
    left = std::exchange(right, left ^ (mix(right ^ mix(key + round)) & mask));
  return left << half | right;
}

const char* name(Split split) {
  return split == Split::train ? "training" : "held-out";
}

}  // namespace

// Walks the cycle of a bijection of a larger power of four until it comes back below `count`.
std::int64_t permute(std::int64_t position, std::int64_t count, std::uint64_t key) {
  const auto limit = static_cast<std::uint64_t>(count);
  const int half = std::max(1, (static_cast<int>(std::bit_width(limit - 1)) + 1) / 2);
  auto x = static_cast<std::uint64_t>(position);
  do x = shuffle(x, half, key);
  while (x >= limit);
  return static_cast<std::int64_t>(x);
}

Corpus::Corpus(TokenSource source, CorpusOptions options) : source_(std::move(source)), options_(options) {
  if (!(options_.held_out >= 0 && options_.held_out < 1))
    throw zero::ConfigError("the held-out fraction is " + std::to_string(options_.held_out), "choose one in [0, 1)");
  train_ = source_.size() - static_cast<std::int64_t>(static_cast<double>(source_.size()) * options_.held_out);
  if (!source_.text() || options_.vocab == 0 || options_.vocab > 255) return;
  std::vector<std::int64_t> chunk(1 << 16);
  for (std::int64_t at = 0; at < source_.size(); at += std::ssize(chunk))
    read(at, std::span(chunk).first(static_cast<std::size_t>(std::min(source_.size() - at, std::ssize(chunk)))));
}

std::int64_t Corpus::tokens(Split split) const {
  return split == Split::train ? train_ : source_.size() - train_;
}

std::int64_t Corpus::windows(std::int64_t seq, Split split) const {
  if (seq < 1) throw zero::ConfigError("a sequence of " + std::to_string(seq) + " tokens", "ask for one or more");
  const std::int64_t count = tokens(split) > 0 ? (tokens(split) - 1) / seq : 0;
  if (count == 0)
    throw zero::ConfigError("the " + std::string(name(split)) + " part of " + source_.path() + " has " +
                                std::to_string(tokens(split)) + " tokens; one sequence needs " +
                                std::to_string(seq + 1),
                            "shorten the sequence or give more data");
  return count;
}

std::int64_t Corpus::window(std::int64_t row, std::int64_t windows, Split split) const {
  const std::int64_t position = row % windows;
  if (split == Split::held_out) return position;
  return permute(position, windows, mix(options_.seed) + mix(static_cast<std::uint64_t>(row / windows)));
}

void Corpus::read(std::int64_t begin, std::span<std::int64_t> out) const {
  source_.read(begin, out);
  if (options_.vocab == 0) return;
  const auto bad = std::ranges::find_if(out, [&](std::int64_t token) { return token >= options_.vocab; });
  if (bad == out.end()) return;
  throw zero::ConfigError(source_.path() + " holds token " + std::to_string(*bad) + " (" +
                              source_.where(begin + (bad - out.begin())) + "), outside the vocabulary of " +
                              std::to_string(options_.vocab),
                          "choose a model with a larger vocabulary, or the data's own format");
}

Batch Corpus::batch(std::int64_t index, std::int64_t batch, std::int64_t seq, Split split) const {
  const std::int64_t count = windows(seq, split);
  if (batch < 1 || index < 0)
    throw zero::ConfigError("batch " + std::to_string(index) + " of " + std::to_string(batch) + " sequences",
                            "ask for one or more sequences and an index from 0");
  at::Tensor rows = at::empty({batch, seq + 1}, at::kLong);
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t start = begin(split) + window(index * batch + i, count, split) * seq;
    read(start, {rows.mutable_data_ptr<std::int64_t>() + i * (seq + 1), static_cast<std::size_t>(seq + 1)});
  }
  return {rows.slice(1, 0, seq).contiguous(), rows.slice(1, 1).contiguous()};
}

std::int64_t Corpus::evaluation_batches(std::int64_t batch, std::int64_t seq) const {
  const std::int64_t count = windows(seq, Split::held_out);
  if (batch < 1 || batch > count)
    throw zero::ConfigError("an evaluation batch of " + std::to_string(batch) + " sequences; the held-out part of " +
                                source_.path() + " has " + std::to_string(count),
                            "choose a batch between 1 and that, or give more data");
  return count / batch;
}

std::int64_t Corpus::ordered_batches(std::int64_t batch, std::int64_t seq) const {
  if (batch < 1 || seq < 1 || source_.size() < 2)
    throw zero::ConfigError("batches of " + std::to_string(batch) + " sequences of " + std::to_string(seq) +
                                " tokens out of " + std::to_string(source_.size()),
                            "ask for one or more sequences, of one or more tokens, and give two or more tokens");
  const std::int64_t predicted = source_.size() - 1;
  return (predicted / seq + batch - 1) / batch + (predicted % seq != 0 ? 1 : 0);
}

Batch Corpus::ordered_batch(std::int64_t index, std::int64_t batch, std::int64_t seq) const {
  const std::int64_t predicted = source_.size() - 1, first = index * batch;
  if (first >= predicted / seq) return windows_from(predicted / seq * seq, 1, predicted % seq);
  return windows_from(first * seq, std::min(batch, predicted / seq - first), seq);
}

Batch Corpus::windows_from(std::int64_t begin, std::int64_t windows, std::int64_t seq) const {
  at::Tensor tokens = at::empty({windows * seq + 1}, at::kLong);
  read(begin, {tokens.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(tokens.numel())});
  const auto rows = [&](std::int64_t from) { return tokens.slice(0, from, from + windows * seq).view({windows, seq}); };
  return {rows(0), rows(1)};
}

}  // namespace models
