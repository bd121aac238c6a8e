#include "states.h"

#include <algorithm>

namespace zero::test {

void MemoryState::read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) {
  before_read(tensor);
  const auto item = static_cast<std::size_t>(size_of(tensors_.at(tensor).dtype));
  const std::vector<char>& all = bytes_.at(tensor);
  if (begin < 0 || end < begin || static_cast<std::size_t>(end) * item > all.size())
    throw std::out_of_range("elements that " + describe(tensors_[tensor].key) + " has not");
  std::memcpy(values, all.data() + static_cast<std::size_t>(begin) * item,
              static_cast<std::size_t>(end - begin) * item);
}

void MemoryState::add(const EngineState& state) {
  const std::lock_guard lock(mutex_);
  if (tensors_.empty()) {
    scalars_ = state.scalars();
    tensors_ = state.tensors();
    for (const StateTensor& each : tensors_) {
      bytes_.emplace_back(static_cast<std::size_t>(each.numel() * size_of(each.dtype)));
      come_.emplace_back(static_cast<std::size_t>(each.numel()));
    }
  }
  if (scalars_ != state.scalars()) faults_ += "the ranks' scalars differ\n";
  if (tensors_ != state.tensors()) faults_ += "the ranks' tensors differ\n";
  for (const StatePiece& piece : state.pieces()) take(tensors_.at(piece.tensor()), piece);
}

void MemoryState::take(const StateTensor& tensor, const StatePiece& piece) {
  const std::size_t which = piece.tensor(), item = static_cast<std::size_t>(size_of(tensor.dtype));
  std::int64_t told = 0, last = 0, in_ranges = 0, before = -1;
  piece.read([&](std::int64_t begin, std::int64_t end, const void* values) {
    if (begin < last || end <= begin) faults_ += describe(tensor.key) + " comes in ranges that do not ascend\n";
    last = end;
    told += end - begin;
    const auto* const bytes = static_cast<const char*>(values);
    const std::size_t at = static_cast<std::size_t>(begin) * item, size = static_cast<std::size_t>(end - begin) * item;
    if (piece.copy() > 0) return copies_.push_back({which, at, {bytes, bytes + size}});
    std::memcpy(bytes_[which].data() + at, bytes, size);
    for (std::int64_t i = begin; i < end; ++i)
      if (come_[which].at(static_cast<std::size_t>(i))++ != 0) faults_ += describe(tensor.key) + " comes twice\n";
  });
  piece.ranges([&](std::int64_t begin, std::int64_t end) {
    if (begin <= before || end <= begin) faults_ += describe(tensor.key) + " has more ranges than it needs\n";
    before = end;
    in_ranges += end - begin;
  });
  if (told != piece.count() || in_ranges != told) faults_ += describe(tensor.key) + " counts wrongly\n";
  if (piece.copy() < 0 || piece.copy() >= piece.copies()) faults_ += describe(tensor.key) + " is no copy of any\n";
}

std::string MemoryState::faults() const {
  std::string faults = faults_;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (std::ranges::count(come_[i], 0) > 0) faults += describe(tensors_[i].key) + " is not complete\n";
  for (const auto& [tensor, begin, bytes] : copies_)
    if (!std::equal(bytes.begin(), bytes.end(), bytes_[tensor].begin() + static_cast<std::ptrdiff_t>(begin)))
      faults += describe(tensors_[tensor].key) + " has copies that differ\n";
  return faults;
}

std::size_t MemoryState::find(const StateKey& key) const {
  const auto found = std::ranges::find(tensors_, key, &StateTensor::key);
  if (found == tensors_.end()) throw std::out_of_range("there is no " + describe(key));
  return static_cast<std::size_t>(found - tensors_.begin());
}

std::string difference(const MemoryState& a, const MemoryState& b) {
  if (a.tensors_.size() != b.tensors_.size()) return "not the same number of tensors";
  for (std::size_t i = 0; i < a.tensors_.size(); ++i) {
    if (a.tensors_[i] != b.tensors_[i])
      return describe(a.tensors_[i].key) + ": " + describe(a.tensors_[i]) + ", " + describe(b.tensors_[i].key) + ": " +
             describe(b.tensors_[i]);
    if (a.bytes_[i] != b.bytes_[i]) return describe(a.tensors_[i].key) + " differs";
  }
  return a.scalars_ == b.scalars_ ? "" : "the scalars differ";
}

StatesModelImpl::StatesModelImpl(bool trains_all)
    : Lm(0.1), filters(register_module("filters", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 20, 3)))) {
  const torch::NoGradGuard no_grad;
  filters->weight.set_data(filters->weight.contiguous(at::MemoryFormat::ChannelsLast));
  turned = register_parameter("turned", torch::zeros({11, 19}).t().contiguous().t());
  empty = register_parameter("empty", torch::zeros({0, 4}));
  register_buffer("count", torch::arange(6).view({2, 3}));
  register_buffer("mask", torch::arange(5).remainder(2).to(at::kBool));
  register_buffer("turned_buffer", torch::arange(12, at::kFloat).view({3, 4}).t());
  for (at::Tensor& parameter : fixed->parameters()) parameter.set_requires_grad(trains_all);
}

at::Tensor StatesModelImpl::loss(std::int64_t index) {
  const at::Tensor seen = filters(numbers(100 + index, {2, 3, 6, 5})).to(at::kFloat).square().mean();
  const at::Tensor product = at::matmul(numbers(200 + index, {2, 11}), turned).to(at::kFloat).square().mean();
  return Lm::loss(index).to(at::kFloat) + seen + product;
}

States trained(const Stretch& stretch, const States& from, Outcome* told) {
  const auto state = std::make_shared<MemoryState>();
  std::vector<Outcome> runs(static_cast<std::size_t>(stretch.job.ranks));
  on_ranks<StatesModelImpl>(stretch.job, {.make = [&] { return std::make_shared<StatesModelImpl>(stretch.trained); }},
                            [&](StatesModelImpl& model, Engine& engine, int rank) {
                              const auto unfreeze = [&] {
                                for (at::Tensor& parameter : model.fixed->parameters())
                                  parameter.set_requires_grad(true);
                              };
                              if (from) engine.load_state(*from);
                              if (from && stretch.unfreezes) unfreeze();
                              for (int step = 0; step < stretch.job.steps; ++step) {
                                runs[static_cast<std::size_t>(rank)].record(train_step(model, engine));
                                if (stretch.unfreezes) unfreeze();
                              }
                              state->add(engine.state());
                            });
  EXPECT_EQ(state->faults(), "");
  const Outcome run = agreed(runs);
  if (told == nullptr) return state;
  told->losses.insert(told->losses.end(), run.losses.begin(), run.losses.end());
  told->norms.insert(told->norms.end(), run.norms.begin(), run.norms.end());
  return state;
}

}  // namespace zero::test
