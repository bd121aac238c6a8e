// Of tensors. What each rank has is compared by one small all-gather, which also tells the lengths of what is gathered.
#include "zero/collectives.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <functional>

#include "device/torch/dtypes.h"
#include "zero/error.h"

namespace zero {
namespace {

enum class Operation : std::int64_t { all_reduce, all_gather, broadcast };

// What a rank calls, as it travels.
struct Call {
  static constexpr std::int64_t kMostDims = 24;
  enum Kind : std::int64_t { dense, undefined, unfit };

  Operation operation{};
  std::int64_t detail = 0;  // the Reduction, or the root
  Kind kind = undefined;
  std::int64_t dtype = 0;
  std::int64_t dims = 0;
  std::array<std::int64_t, kMostDims> sizes{};

  bool same_tensor(const Call& other, std::size_t from = 0) const {
    return dtype == other.dtype && dims == other.dims &&
           std::equal(sizes.begin() + static_cast<std::ptrdiff_t>(from), sizes.end(),
                      other.sizes.begin() + static_cast<std::ptrdiff_t>(from));
  }
  at::ScalarType type() const { return static_cast<at::ScalarType>(dtype); }
  std::vector<std::int64_t> shape() const { return {sizes.begin(), sizes.begin() + dims}; }
};
constexpr std::int64_t kWords = sizeof(Call) / sizeof(std::int64_t);

constexpr std::array<const char*, 4> kReductions{"sum", "mean", "max", "min"};

std::string name_of(const Call& call) {
  switch (call.operation) {
    case Operation::all_reduce:
      return std::string("all_reduce(") + kReductions.at(static_cast<std::size_t>(call.detail)) + ")";
    case Operation::all_gather: return "all_gather";
    case Operation::broadcast: return "broadcast(from rank " + std::to_string(call.detail) + ")";
  }
  return "?";
}

std::string text_of(const Call& call) {
  std::string text = name_of(call) + " of ";
  if (call.kind == Call::undefined) return text + "an undefined tensor";
  text += std::string(c10::toString(call.type())) + " [";
  for (std::int64_t i = 0; i < std::min(call.dims, Call::kMostDims); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(call.sizes[static_cast<std::size_t>(i)]);
  return text + "]" + (call.kind == Call::unfit ? ", which it does not take" : "");
}

bool adds(at::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

bool takes(Operation operation, std::int64_t detail, at::ScalarType type) {
  const bool real = c10::isIntegralType(type, /*includeBool=*/true) || c10::isFloatingType(type);
  if (operation != Operation::all_reduce) return real;
  const bool integer = c10::isIntegralType(type, /*includeBool=*/false) && !c10::isBarebonesUnsignedType(type);
  switch (static_cast<Reduction>(detail)) {
    case Reduction::sum: return adds(type) || integer;
    case Reduction::mean: return adds(type);
    case Reduction::max:
    case Reduction::min: return adds(type) || integer || type == at::kBool;
  }
  return false;
}

Call describe(Operation operation, std::int64_t detail, const at::Tensor& tensor) {
  Call call{.operation = operation, .detail = detail};
  if (!tensor.defined()) return call;
  call.dtype = static_cast<std::int64_t>(tensor.scalar_type());
  call.dims = tensor.dim();
  const auto told = std::min(call.dims, Call::kMostDims);
  for (std::int64_t i = 0; i < told; ++i) call.sizes[static_cast<std::size_t>(i)] = tensor.size(i);
  const bool fits = tensor.layout() == at::kStrided && !tensor.is_quantized() && call.dims <= Call::kMostDims &&
                    takes(operation, detail, tensor.scalar_type());
  call.kind = fits ? Call::dense : Call::unfit;
  return call;
}

std::vector<Call> exchanged(const Call& mine, const Communicator& ranks) {
  std::vector<Call> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather({&mine, kWords, Dtype::i64}, {all.data(), kWords * ranks.size(), Dtype::i64}).wait();
  return all;
}

const char* hint_for(Operation operation) {
  switch (operation) {
    case Operation::all_reduce: return "give tensors of one shape and dtype; integers have no mean, bool no sum";
    case Operation::all_gather:
      return "give tensors of one dtype that differ in the length of the first dimension only";
    case Operation::broadcast: return "the root gives a tensor, and others one like it or an undefined one";
  }
  return "";
}

// All call the same, and `fits` says so of what each gives.
void require_fitting(const std::vector<Call>& calls, const std::function<bool(const Call&)>& fits) {
  const bool all = std::ranges::all_of(calls, [&](const Call& call) {
    return call.operation == calls[0].operation && call.detail == calls[0].detail && call.kind != Call::unfit &&
           fits(call);
  });
  if (all) return;
  std::string text;
  for (std::size_t rank = 0; rank < calls.size(); ++rank)
    text += (rank == 0 ? "rank " : "; rank ") + std::to_string(rank) + ": " + text_of(calls[rank]);
  throw ConfigError("what the ranks give to a collective does not fit together: " + text, hint_for(calls[0].operation));
}

// Row-major, in the host's memory, outside of autograd.
at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).contiguous();
}

ConstView bytes_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), static_cast<std::int64_t>(tensor.nbytes()), Dtype::u8};
}

View bytes_of(at::Tensor& tensor) {
  return {tensor.mutable_data_ptr(), static_cast<std::int64_t>(tensor.nbytes()), Dtype::u8};
}

// In place.
void add_up(at::Tensor& values, const Communicator& ranks) {
  if (values.numel() == 0) return;
  ranks.all_reduce({values.mutable_data_ptr(), values.numel(), *any_dtype_of(values.scalar_type())}).wait();
}

at::Tensor sum_of_floats(const at::Tensor& mine, const Communicator& ranks) {
  at::Tensor sum = mine.clone();
  add_up(sum, ranks);
  return sum;
}

at::Tensor sum_of_integers(const at::Tensor& mine, const Communicator& ranks) {
  at::Tensor wide = mine.to(at::kLong, /*non_blocking=*/false, /*copy=*/true);
  add_up(wide, ranks);
  at::Tensor sum = wide.to(mine.scalar_type());
  if (!at::equal(sum.to(at::kLong), wide))
    throw ConfigError(
        "all_reduce(sum): a sum of " + std::string(c10::toString(mine.scalar_type())) + " is no value of that dtype",
        "give it in int64");
  return sum;
}

at::Tensor mean_of(const at::Tensor& mine, const Communicator& ranks) {
  at::Tensor sum = mine.to(scalar_type(accumulation(*dtype_of(mine.scalar_type()))), /*non_blocking=*/false,
                           /*copy=*/true);
  add_up(sum, ranks);
  return sum.div_(ranks.size()).to(mine.scalar_type());
}

// Each rank finds those of its slice of the elements.
at::Tensor extremes_of(const at::Tensor& mine, const Communicator& ranks, bool largest) {
  const std::int64_t size = ranks.size(), slice = (mine.numel() + size - 1) / size;
  if (slice == 0) return mine.clone();
  at::Tensor sent = at::zeros({size, slice}, mine.options());
  sent.view(-1).narrow(0, 0, mine.numel()).copy_(mine.view(-1));
  at::Tensor came = at::empty_like(sent);
  ranks.all_to_all(bytes_of(std::as_const(sent)), bytes_of(came)).wait();
  const at::Tensor found = largest ? at::amax(came, 0) : at::amin(came, 0);
  ranks.all_gather(bytes_of(found), bytes_of(sent)).wait();
  return sent.view(-1).narrow(0, 0, mine.numel()).view(mine.sizes()).clone();
}

at::Tensor reduced(const at::Tensor& mine, const Communicator& ranks, Reduction how) {
  switch (how) {
    case Reduction::sum: return adds(mine.scalar_type()) ? sum_of_floats(mine, ranks) : sum_of_integers(mine, ranks);
    case Reduction::mean: return mean_of(mine, ranks);
    case Reduction::max:
    case Reduction::min: break;
  }
  return extremes_of(mine, ranks, how == Reduction::max);
}

std::vector<std::int64_t> lengths_of(const std::vector<Call>& calls) {
  std::vector<std::int64_t> lengths;
  for (const Call& call : calls) lengths.push_back(call.dims == 0 ? 1 : call.sizes[0]);
  return lengths;
}

// Rows of all ranks, as many of each as the longest has.
at::Tensor gathered(const at::Tensor& mine, std::int64_t longest, const Communicator& ranks) {
  std::vector<std::int64_t> shape = mine.sizes().vec();
  shape[0] = longest;
  at::Tensor padded = mine;
  if (mine.size(0) != longest) {
    padded = at::zeros(shape, mine.options());
    padded.narrow(0, 0, mine.size(0)).copy_(mine);
  }
  shape.insert(shape.begin(), ranks.size());
  at::Tensor all = at::empty(shape, mine.options());
  if (all.numel() > 0) ranks.all_gather(bytes_of(std::as_const(padded)), bytes_of(all)).wait();
  return all;
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& tensor, const World& world, Reduction how) {
  const Communicator& ranks = world.communicator();
  const at::NoGradGuard no_grad;
  const auto calls = exchanged(describe(Operation::all_reduce, static_cast<std::int64_t>(how), tensor), ranks);
  require_fitting(calls, [&](const Call& call) { return call.kind == Call::dense && call.same_tensor(calls[0]); });
  return reduced(on_host(tensor), ranks, how).to(tensor.device());
}

at::Tensor all_gather(const at::Tensor& tensor, const World& world) {
  const Communicator& ranks = world.communicator();
  const at::NoGradGuard no_grad;
  const auto calls = exchanged(describe(Operation::all_gather, 0, tensor), ranks);
  require_fitting(calls, [&](const Call& call) { return call.kind == Call::dense && call.same_tensor(calls[0], 1); });
  const std::vector<std::int64_t> lengths = lengths_of(calls);
  const at::Tensor mine = on_host(tensor.dim() == 0 ? tensor.reshape({1}) : tensor);
  const at::Tensor all = gathered(mine, *std::ranges::max_element(lengths), ranks);
  if (std::ranges::all_of(lengths, [&](std::int64_t length) { return length == lengths[0]; }))
    return all.flatten(0, 1).to(tensor.device());
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank)
    parts.push_back(all.select(0, static_cast<std::int64_t>(rank)).narrow(0, 0, lengths[rank]));
  return at::cat(parts).to(tensor.device());
}

at::Tensor broadcast(const at::Tensor& tensor, const World& world, int root) {
  const Communicator& ranks = world.communicator();
  const at::NoGradGuard no_grad;
  const auto calls = exchanged(describe(Operation::broadcast, root, tensor), ranks);
  const bool there = 0 <= root && root < ranks.size();
  const Call& from = calls[there ? static_cast<std::size_t>(root) : 0];
  require_fitting(calls, [&](const Call& call) {
    return there && from.kind == Call::dense && (call.kind == Call::undefined || call.same_tensor(from));
  });
  at::Tensor values = ranks.rank() == root ? on_host(tensor).clone() : at::empty(from.shape(), from.type());
  if (values.numel() > 0) ranks.broadcast(bytes_of(values), root).wait();
  return tensor.defined() ? values.to(tensor.device()) : values;
}

}  // namespace zero
