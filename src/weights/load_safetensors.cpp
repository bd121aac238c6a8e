#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "deferred/deferred_tensors.h"
#include "deferred/read_stretches.h"
#include "engine/module_tensors.h"
#include "parallel/sharded_tensor.h"
#include "persist/checksum.h"
#include "weights/load_weights.h"
#include "zero/error.h"
#include "zero/safetensors.h"

namespace zero {
namespace {

constexpr std::int64_t kElementsSeen = 8, kPlacesSeen = 16;

std::string words_of(std::string_view type, at::IntArrayRef shape) {
  return std::string(type) + " " + listed({shape.data(), shape.size()});
}

// A tensor of the module, and where its values come from.
struct Match {
  const ModuleTensor* to;
  std::size_t from;
  at::ScalarType type;  // of the file
};

// What a tensor has of a file's: elements from `first` on.
struct Origin {
  std::size_t tensor;
  std::int64_t first;
  at::ScalarType type;
};

// `to` has one dimension.
void copy_stretches(Weights& weights, const Origin& from, const at::Tensor& to) {
  read_stretches(to, from.type, [&](std::int64_t begin, std::int64_t end, void* memory) {
    weights.read(from.tensor, from.first + begin, from.first + end, memory);
  });
}

// Of `count` elements in whole bytes: what they are, and their values at places spread over all of them, for files of
// one model that was trained on have the same of all else, and may have the same in rows that no token came to.
std::uint64_t mark_of(Weights& weights, const Origin& from, std::int64_t count) {
  const WeightTensor& tensor = weights.tensors()[from.tensor];
  const std::int64_t bits = bits_of(tensor.type), seen = std::min(count, kElementsSeen);
  if (bits % 8 != 0) return 0;
  std::string text = in_quotes(tensor.name) + words_of(name(tensor.type), tensor.shape) + std::to_string(from.first);
  std::string values(static_cast<std::size_t>(seen * bits / 8), '\0');
  for (std::int64_t place = 0; place < kPlacesSeen; ++place) {
    const std::int64_t begin = (count - seen) * place / (kPlacesSeen - 1);
    weights.read(from.tensor, from.first + begin, from.first + begin + seen, values.data());
    text += values;
  }
  return checksum_of(text).low | 1;
}

class SafetensorsLoading {
 public:
  SafetensorsLoading(const torch::nn::Module& module, const std::string& files, std::shared_ptr<Weights> weights)
      : files_(files), weights_(std::move(weights)), tensors_(tensors_of(module)), used_(weights_->tensors().size()) {
    for (std::size_t i = 0; i < weights_->tensors().size(); ++i) index_.emplace(weights_->tensors()[i].name, i);
  }

  void match(const TensorNames& names, const std::function<bool(const std::string&)>& left_out) {
    for (const ModuleTensor& tensor : tensors_) match(tensor, names);
    for (std::size_t i = 0; i < used_.size(); ++i) {
      const std::string& name = weights_->tensors()[i].name;
      if (!used_[i] && !(left_out && left_out(name))) faults_.push_back(in_quotes(name) + " is not expected");
    }
    if (faults_.empty()) return;
    std::string text = in_quotes(files_) + " has other weights than the module:";
    for (const std::string& fault : faults_) text += "\n  - " + fault;
    throw ConfigError(text, "load the weights of the same model, or say which name of the module is which of the file");
  }

  void copy() {
    for (const Match& match : matches_) copy(match);
  }

 private:
  void match(const ModuleTensor& tensor, const TensorNames& names) {
    std::vector<std::string> wanted;
    std::vector<std::size_t> found;
    for (const std::string& name : tensor.names) {
      if (const std::string file_name = names(name); !file_name.empty()) {
        wanted.push_back(in_quotes(file_name));
        if (const auto at = index_.find(file_name); at != index_.end()) found.push_back(at->second);
      }
    }
    if (wanted.empty()) return;
    if (found.empty())
      return faults_.push_back(joined(wanted, " or ") + " is missing, " +
                               words_of(c10::toString(tensor.tensor.scalar_type()), tensor.shape()));
    for (const std::size_t from : found) {
      used_[from] = true;
      if (!fits(tensor, from)) return;
    }
    for (const std::size_t from : found)
      if (from != found.front() && !same(found.front(), from)) return differ(found.front(), from);
    matches_.push_back({&tensor, found.front(), *scalar_type_of(weights_->tensors()[found.front()].type)});
  }

  bool fits(const ModuleTensor& tensor, std::size_t from) {
    const WeightTensor& weights = weights_->tensors()[from];
    const auto type = scalar_type_of(weights.type);
    const at::ScalarType own = tensor.tensor.scalar_type();
    const bool converts = type && (*type == own || (at::isFloatingType(*type) && at::isFloatingType(own)));
    if (converts && tensor.shape() == weights.shape) return true;
    faults_.push_back(in_quotes(weights.name) + " is " + words_of(name(weights.type), weights.shape) + ", not " +
                      words_of(c10::toString(own), tensor.shape()));
    return false;
  }

  // To the bit.
  bool same(std::size_t a, std::size_t b) {
    const WeightTensor& first = weights_->tensors()[a];
    if (first.type != weights_->tensors()[b].type) return false;
    std::vector<char> left, right;
    for (std::int64_t at = 0; at < first.numel(); at += kReadAtOnce) {
      const std::int64_t count = std::min(kReadAtOnce, first.numel() - at);
      left.resize(static_cast<std::size_t>(count * bits_of(first.type) / 8));
      right.resize(left.size());
      weights_->read(a, at, at + count, left.data());
      weights_->read(b, at, at + count, right.data());
      if (left != right) return false;
    }
    return true;
  }

  void differ(std::size_t a, std::size_t b) {
    faults_.push_back(in_quotes(weights_->tensors()[a].name) + " and " + in_quotes(weights_->tensors()[b].name) +
                      " differ, and the module has one tensor for both");
  }

  // What is deferred is read when it is wanted.
  void copy(const Match& match) {
    const at::Tensor& to = match.to->tensor;
    if (to.numel() == 0) return;
    const Origin from{match.from, match.to->first(), match.type};
    if (deferred_tensors::whole(to) && to.is_cpu()) return deferred_tensors::set_values(to, source(from, to));
    const bool has_memory = !deferred_tensors::deferred(to) && !sharded::is_sharded(to.unsafeGetTensorImpl());
    if (to.is_contiguous() && has_memory) return copy_stretches(*weights_, from, to.view(-1));
    at::Tensor values = at::empty(to.sizes(), match.type);
    copy_stretches(*weights_, from, values.view(-1));
    to.copy_(values);
  }

  DeferredValues::Source source(const Origin& from, const at::Tensor& to) const {
    return {[weights = weights_, from, type = to.scalar_type()](std::int64_t begin, std::int64_t end, void* memory) {
              const auto size = static_cast<std::int64_t>(c10::elementSize(type));
              copy_stretches(*weights, {from.tensor, from.first + begin / size, from.type},
                             at::from_blob(memory, {(end - begin) / size}, type));
            },
            mark_of(*weights_, from, to.numel())};
  }

  const std::string& files_;
  std::shared_ptr<Weights> weights_;
  std::vector<ModuleTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;  // of the files' tensors
  std::vector<bool> used_;
  std::vector<Match> matches_;
  std::vector<std::string> faults_;
};

}  // namespace

void load_weights(torch::nn::Module& module, std::shared_ptr<Weights> weights, const std::string& files,
                  const TensorNames& names, const std::function<bool(const std::string&)>& left_out) {
  const at::NoGradGuard no_grad;
  SafetensorsLoading loading(module, files, std::move(weights));
  loading.match(names, left_out);
  loading.copy();
}

void load_safetensors(torch::nn::Module& module, const std::string& files, const TensorNames& names,
                      const std::function<bool(const std::string&)>& left_out) {
  load_weights(module, open_weights(files), files, names, left_out);
}

}  // namespace zero
