#include "comm/fingerprint.h"

#include <algorithm>

#include "zero/error.h"

namespace zero {
namespace {

std::string shape(std::int64_t count, Dtype dtype) {
  return std::to_string(count) + ' ' + std::string(name(dtype));
}

}  // namespace

Fingerprint Fingerprint::of(std::uint64_t sequence, Collective operation, ConstView input, ConstView output, int root) {
  return {sequence, input.count, output.count, root, static_cast<std::uint8_t>(operation), input.dtype, output.dtype};
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
  return text + ")";
}

void require_same(std::span<const Fingerprint> calls, int rank, int first_rank) {
  if (std::all_of(calls.begin(), calls.end(), [&](const Fingerprint& call) { return call == calls[0]; })) return;
  std::string list;
  for (std::size_t r = 0; r < calls.size(); ++r)
    list += "\n  rank " + std::to_string(first_rank + static_cast<int>(r)) + ": " + calls[r].text();
  throw CommError(
      "rank " + std::to_string(first_rank + rank) + ": the ranks called different operations:" + list + '\n',
      "every rank must make the same calls in the same order with the same shapes and dtypes");
}

}  // namespace zero
