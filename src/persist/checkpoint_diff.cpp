#include "persist/checkpoint_diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/half.h"
#include "base/text.h"
#include "zero/dtype.h"

namespace zero {
namespace {

constexpr std::int64_t kCompared = std::int64_t{4} << 20;  // bytes that are compared at a time

struct Apart {
  bool differ = false, nan = false;  // nan: in one of the two
  double by = 0;
};

template <class T>
Apart apart(double a, double b, T bits_a, T bits_b) {
  if (std::isnan(a) || std::isnan(b)) return {std::isnan(a) != std::isnan(b), true, 0};
  if (bits_a == bits_b) return {};
  return {true, false, a == b ? 0 : std::abs(a - b)};
}

Apart compared(double a, double b) {
  return apart(a, b, std::bit_cast<std::uint64_t>(a), std::bit_cast<std::uint64_t>(b));
}
Apart compared(float a, float b) {
  return apart(a, b, std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b));
}
Apart compared(Bf16 a, Bf16 b) {
  return apart(widen(a), widen(b), a.bits, b.bits);
}
Apart compared(Fp16 a, Fp16 b) {
  return apart(widen(a), widen(b), a.bits, b.bits);
}
// Of integers, exactly, before it is rounded to a double.
template <std::integral T>
Apart compared(T a, T b) {
  const auto high = static_cast<std::uint64_t>(std::max(a, b)), low = static_cast<std::uint64_t>(std::min(a, b));
  return {a != b, false, static_cast<double>(high - low)};
}

// What is known of a tensor's elements so far.
struct Count {
  std::int64_t differ = 0, nan = 0;
  double largest = 0;
  std::int64_t at = -1;

  void add(const Apart& apart, std::int64_t element) {
    if (!apart.differ) return;
    ++differ;
    if (apart.nan) {
      ++nan;
    } else if (at < 0 || apart.by > largest) {
      largest = apart.by;
      at = element;
    }
  }
};

template <class T>
void compare_chunk(const char* a, const char* b, std::int64_t begin, std::int64_t end, Count& count) {
  for (std::int64_t i = begin; i < end; ++i) {
    T x, y;
    std::memcpy(&x, a + static_cast<std::size_t>(i - begin) * sizeof(T), sizeof(T));
    std::memcpy(&y, b + static_cast<std::size_t>(i - begin) * sizeof(T), sizeof(T));
    count.add(compared(x, y), i);
  }
}

void compare_chunk(Dtype dtype, const char* a, const char* b, std::int64_t begin, std::int64_t end, Count& count) {
  switch (dtype) {
    case Dtype::f32: return compare_chunk<float>(a, b, begin, end, count);
    case Dtype::f64: return compare_chunk<double>(a, b, begin, end, count);
    case Dtype::bf16: return compare_chunk<Bf16>(a, b, begin, end, count);
    case Dtype::f16: return compare_chunk<Fp16>(a, b, begin, end, count);
    case Dtype::i64: return compare_chunk<std::int64_t>(a, b, begin, end, count);
    case Dtype::i32: return compare_chunk<std::int32_t>(a, b, begin, end, count);
    case Dtype::u8: return compare_chunk<std::uint8_t>(a, b, begin, end, count);
  }
}

std::vector<std::int64_t> index_of(std::int64_t element, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    index[d] = element % shape[d];
    element /= shape[d];
  }
  return index;
}

// A tensor of the state or of the program's, as one checkpoint has it.
struct Side {
  std::string form;
  StateTensor tensor;
  std::function<void(std::int64_t begin, std::int64_t end, void* values)> read;
};
using Sides = std::map<std::string, Side>;

class Comparison {
 public:
  Comparison(Env& env, const Checkpoint& a, const Checkpoint& b, const ReadProgress& progress)
      : a_(a), b_(b), source_a_(env, a), source_b_(env, b), progress_(progress) {}

  CheckpointDifferences run() {
    const auto [names, sides_a] = sides(a_, source_a_);
    const auto [others, sides_b] = sides(b_, source_b_);
    for (const std::string& name : names) {
      const Side& side = sides_a.at(name);
      const auto other = sides_b.find(name);
      if (other == sides_b.end()) {
        result_.forms.push_back({name, side.form, {}});
      } else if (other->second.form != side.form) {
        result_.forms.push_back({name, side.form, other->second.form});
      } else {
        tensor(name, side, other->second);
      }
    }
    for (const std::string& name : others)
      if (!sides_a.contains(name)) result_.forms.push_back({name, {}, sides_b.at(name).form});
    scalars();
    return std::move(result_);
  }

 private:
  // With their names in the order of the manifest.
  static std::pair<std::vector<std::string>, Sides> sides(const Checkpoint& checkpoint, CheckpointSource& source) {
    std::vector<std::string> names;
    Sides all;
    const auto add = [&](const std::string& name, Side side) {
      names.push_back(name);
      all.emplace(name, std::move(side));
    };
    for (std::size_t i = 0; i < source.tensors().size(); ++i) {
      const StateTensor& each = source.tensors()[i];
      add(describe(each.key), {describe(each), each, [&source, i](std::int64_t begin, std::int64_t end, void* values) {
                                 source.read(i, begin, end, values);
                               }});
    }
    const std::vector<StoredUserTensor>& users = checkpoint.manifest().user_tensors;
    for (std::size_t i = 0; i < users.size(); ++i) {
      const StateTensor plain{.key = {users[i].name}, .dtype = users[i].dtype, .shape = users[i].shape};
      const std::int64_t item = size_of(plain.dtype);
      add(describe(users[i]), {describe(plain), plain, [&source, i, item](auto begin, auto end, void* values) {
                                 source.read_user(i, begin * item, end * item, values);
                               }});
    }
    return {std::move(names), std::move(all)};
  }

  void tensor(const std::string& name, const Side& a, const Side& b) {
    const std::int64_t numel = a.tensor.numel(), item = size_of(a.tensor.dtype), step = kCompared / item;
    Count count;
    for (std::int64_t begin = 0; begin < numel; begin += step) {
      const std::int64_t end = std::min(begin + step, numel);
      const auto bytes = static_cast<std::size_t>((end - begin) * item);
      chunk_a_.resize(bytes);
      chunk_b_.resize(bytes);
      a.read(begin, end, chunk_a_.data());
      b.read(begin, end, chunk_b_.data());
      if (chunk_a_ != chunk_b_) compare_chunk(a.tensor.dtype, chunk_a_.data(), chunk_b_.data(), begin, end, count);
      if (progress_) progress_(2 * static_cast<std::int64_t>(bytes));
    }
    ++result_.tensors;
    result_.elements += numel;
    if (count.differ == 0) return;
    ValueDifference difference{name, numel, count.differ, count.nan, count.largest};
    if (count.at >= 0) difference.at = index_of(count.at, a.tensor.shape);
    result_.values.push_back(std::move(difference));
  }

  void scalar(const std::string& name, const std::string& a, const std::string& b) {
    if (a != b) result_.scalars.push_back({name, a, b});
  }

  void scalars() {
    const StateScalars &a = source_a_.scalars(), &b = source_b_.scalars();
    scalar("steps", std::to_string(a.steps), std::to_string(b.steps));
    scalar("skipped steps", std::to_string(a.skipped_steps), std::to_string(b.skipped_steps));
    scalar("micro-batches", std::to_string(a.micro_batches), std::to_string(b.micro_batches));
    scalar("seed", std::to_string(a.seed), std::to_string(b.seed));
    scalar("loss scaler", scaler(a), scaler(b));
    of_parameters("updates of ", a.updates, b.updates, [](std::int64_t count) { return std::to_string(count); });
    of_parameters("optimizer of ", a.optimizers, b.optimizers, [](const std::string& name) { return name; });
    each_of("largest magnitudes of ", a.float8, b.float8, magnitudes);
    scalar("user", a_.manifest().user, b_.manifest().user);
  }

  // Once for all where all have the same.
  void of_parameters(const std::string& what, const auto& a, const auto& b, auto&& text) {
    const auto name = [](const auto& each) { return each.first; };
    const auto all_alike = [](const auto& map) {
      return std::ranges::all_of(map, [&](const auto& each) { return each.second == map.begin()->second; });
    };
    const bool one = !a.empty() && std::ranges::equal(a, b, {}, name, name) && all_alike(a) && all_alike(b);
    if (!one) return each_of(what, a, b, text);
    scalar(what + "each parameter", text(a.begin()->second), text(b.begin()->second));
  }

  void each_of(const std::string& what, const auto& a, const auto& b, auto&& text) {
    std::set<std::string> names;
    for (const auto& [name, value] : a) names.insert(name);
    for (const auto& [name, value] : b) names.insert(name);
    const auto in = [&](const auto& map, const std::string& name) {
      const auto found = map.find(name);
      return found == map.end() ? std::string() : text(found->second);
    };
    for (const std::string& name : names) scalar(what + name, in(a, name), in(b, name));
  }

  static std::string scaler(const StateScalars& scalars) {
    const auto& each = scalars.loss_scaler;
    if (!each) return {};
    return shortest(each->value) + ", " + std::to_string(each->clean_steps) + " clean steps, " +
           std::to_string(each->overflows_left) + " overflows left";
  }

  static std::string magnitudes(const StateScalars::Float8History& history) {
    return "inputs [" + shortest(history.inputs) + "], gradients [" + shortest(history.gradients) + "]";
  }

  const Checkpoint &a_, &b_;
  CheckpointSource source_a_, source_b_;
  const ReadProgress& progress_;
  std::vector<char> chunk_a_, chunk_b_;
  CheckpointDifferences result_;
};

}  // namespace

CheckpointDifferences differences(Env& env, const Checkpoint& a, const Checkpoint& b, const ReadProgress& progress) {
  return Comparison(env, a, b, progress).run();
}

}  // namespace zero
