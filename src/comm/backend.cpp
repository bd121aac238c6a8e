#include "comm/backend.h"

#include <algorithm>

#include "zero/error.h"

namespace zero {
namespace {

std::string shape(std::int64_t count, Dtype dtype) {
  return std::to_string(count) + ' ' + std::string(name(dtype));
}

}  // namespace

void reject_call(const CollectiveCall& call, const CommunicatorImpl& group, const std::string& what) {
  throw ConfigError("rank " + std::to_string(group.rank()) + ": " + std::string(name(call.collective)) + ": " + what);
}

void require_cpu(const CollectiveCall& call, const CommunicatorImpl& group) {
  if (call.in.device < 0 && call.out.device < 0) return;
  reject_call(call, group,
              "memory of device " + std::to_string(call.in.device < 0 ? call.out.device : call.in.device) +
                  ", but the backend \"" + std::string(group.backend()) + "\" works on CPU memory");
}

Fingerprint Fingerprint::of(std::uint64_t sequence, const CollectiveCall& call) {
  const auto operation = static_cast<std::uint8_t>(call.collective);
  const auto& [first, each, all] = call.leaves;
  const bool plain = first == 0 && each == 1 && (all == 0 || all * call.out.count == call.in.count);
  const auto leaves = static_cast<std::uint8_t>(plain ? 0 : 1 + (first + 7 * each + 11 * all) % 255);
  return {sequence, call.in.count, call.out.count, call.root, operation, call.in.dtype, call.out.dtype, leaves};
}

Fingerprint Fingerprint::split(std::uint64_t sequence) {
  Fingerprint call;
  call.sequence = sequence;
  call.operation = kSplit;
  return call;
}

std::string Fingerprint::text() const {
  const auto collective = static_cast<Collective>(operation);
  std::string title = std::string(operation == kSplit ? "split" : name(collective)) + " #" + std::to_string(sequence);
  if (operation == kSplit || collective == Collective::barrier) return title;
  std::string text = title + " (" + shape(input, input_dtype);
  if (input != output || input_dtype != output_dtype) text += " -> " + shape(output, output_dtype);
  if (root >= 0) text += ", root " + std::to_string(root);
  if (leaves != 0) text += ", part " + std::to_string(leaves) + " of a sum";
  return text + ")";
}

void require_same(std::span<const Fingerprint> calls, int rank, std::span<const int> numbers) {
  if (std::all_of(calls.begin(), calls.end(), [&](const Fingerprint& call) { return call == calls[0]; })) return;
  const auto name = [&](int r) {
    return "rank " + std::to_string(numbers.empty() ? r : numbers[static_cast<std::size_t>(r)]) + ": ";
  };
  std::string list;
  for (int r = 0; r < static_cast<int>(calls.size()); ++r)
    list += "\n  " + name(r) + calls[static_cast<std::size_t>(r)].text();
  throw CommError(name(rank) + "the ranks called different operations:" + list + '\n',
                  "every rank must make the same calls in the same order with the same shapes and dtypes");
}

std::vector<int> split_group(std::span<const SplitCall> calls, int rank) {
  const auto key = [&](int r) { return calls[static_cast<std::size_t>(r)].key; };
  std::vector<int> members;
  for (int r = 0; r < static_cast<int>(calls.size()); ++r)
    if (calls[static_cast<std::size_t>(r)].color == calls[static_cast<std::size_t>(rank)].color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return key(a) < key(b); });
  return members;
}

}  // namespace zero
