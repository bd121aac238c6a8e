#include "engine/engine_ranks.h"

#include <bit>

#include "base/random.h"
#include "comm/keyed_split.h"
#include "engine/same_on_ranks.h"
#include "parallel/axis_inputs.h"
#include "zero/error.h"

namespace zero {
namespace {

// A group of the engine's own, so that its prefetches never mix with the program's collectives, or another engine's.
Communicator own_group(const Communicator& all, const std::vector<std::string>& lines) {
  if (all.size() == 1) return all;
  return split_by_key(all,
                      {agreement_key(lines), [&lines](const Communicator& group) { require_agreement(group, lines); }});
}

std::shared_ptr<TensorAxis> tensor_axis(const Mesh& mesh, const Options& options,
                                        const std::shared_ptr<TrafficMeter>& meter,
                                        const std::vector<std::string>& lines, Device& device) {
  if (mesh.size(Axis::tensor) == 1 && options.tensor_grain == 1) return nullptr;
  const Communicator own = own_group(mesh[Axis::tensor], lines);
  require_agreement(own, lines);
  return std::make_shared<TensorAxis>(own, mesh[Axis::tensor], meter,
                                      TensorAxisOptions{options.tensor_grain, options.sequence_parallel},
                                      device.is_host() ? nullptr : &device);
}

// Where the engine computes in the host's memory one group carries both.
MeshGroups data_groups(const MeshGroups& groups, Device& device) {
  return device.is_host() ? groups : groups.on_device(device);
}

// All ranks, before there is an exchange.
Communicator setup_group(const MeshGroups& groups, const std::shared_ptr<TrafficMeter>& meter) {
  return groups.metered_by(meter).along(Axis::data);
}

std::uint64_t seed_of(const Options& options, std::int64_t number, const Communicator& all) {
  if (all.size() > 1) all.broadcast({&number, 1, Dtype::i64}, 0).wait();
  return options.seed.value_or(number == 0 ? 0 : derived(0, static_cast<std::uint64_t>(number)));
}

// Along the tensor axis operators draw the same numbers.
std::uint64_t agreed_seed(const TensorAxis& axis, std::uint64_t seed) {
  return std::bit_cast<std::uint64_t>(axis.gather_words({std::bit_cast<std::int64_t>(seed)}).front());
}

Exchange::Lanes lanes(const MeshGroups& control, const MeshGroups& data, const std::shared_ptr<TrafficMeter>& meter,
                      const Device& device) {
  const MeshGroups metered = control.metered_by(meter);
  return {metered, device.is_host() ? metered : data.metered_by(meter), meter};
}

// Announcements, gathers and reductions go beside each other where the plan has several units on their way, and gathers
// concern all ranks; but on a device's own network, whose operations devices are to be given in one order.
Exchange::Channels channels(const Trained& trained, const MeshGroups& groups, const MeshGroups& data, Device& device,
                            const std::shared_ptr<TrafficMeter>& meter,
                            const std::shared_ptr<TrafficMeter>& setup_meter) {
  Exchange::Channels all{lanes(groups, data, meter, device), lanes(groups, data, setup_meter, device), groups,
                         trained.routes().within()};
  const bool joined = groups.along(Axis::data).backend() != data.along(Axis::data).backend();
  const bool gathers = trained.routes().gathers() && trained.routes().within() == Axis::data;
  if (groups.size() == 1 || trained.resolved().on_their_way() == 1 || joined || !gathers) return all;
  all.announcing = groups.once_more();
  const MeshGroups own = groups.once_more();
  own.go_first();
  all.gathering = data_groups(own, device).metered_by(meter);
  return all;
}

}  // namespace

EngineRanks::EngineRanks(const Trained& trained, const Inventory& inventory, const Mesh& mesh)
    : number_(mesh.world().take_seat()),
      meter_(std::make_shared<TrafficMeter>()),
      setup_meter_(std::make_shared<TrafficMeter>()),
      tensor_meter_(std::make_shared<TrafficMeter>()),
      groups_(own_group(mesh.data().world().communicator(), trained.description(inventory)), mesh.data().shape()),
      seed_(seed_of(trained.options(), *number_, setup_group(groups_, setup_meter_))),
      accounts_(inventory.device, groups_.along(Axis::shard),
                groups_.along(trained.routes().keeps_for_group(mesh.shape()) ? Axis::shard : trained.routes().within()),
                trained.options().disk),
      whole_mesh_(mesh.shape()),
      tensor_(tensor_axis(mesh, trained.options(), tensor_meter_, trained.description(inventory), accounts_.device())),
      all_(tensor_ == nullptr ? Communicator()
                              : own_group(mesh.world().communicator(), trained.description(inventory))),
      data_groups_(data_groups(groups_, accounts_.device())),
      exchange_(accounts_.device(), channels(trained, groups_, data_groups_, accounts_.device(), meter_, setup_meter_),
                [&trained](int unit) { return trained.layout().unit(unit).name(); }) {
  require_agreement(setup_group(groups_, setup_meter_), trained.description(inventory));
  if (tensor_ == nullptr) return;
  seed_ = agreed_seed(*tensor_, seed_);
  if (trained.options().partition_activations && tensor_->size() > 1)
    partitioned_inputs_ = partition_inputs_here(inputs_partitioned_over(tensor_));
}

std::vector<std::int64_t> EngineRanks::table(Exchange::Kind kind, std::span<const std::int64_t> words) {
  const std::vector<std::int64_t> table = exchange_.table(kind, words);
  return tensor_ == nullptr ? table : tensor_->gather_words(table);
}

int EngineRanks::rank_of_all() const {
  return tensor_ == nullptr ? rank() : all_.rank();
}

void EngineRanks::confer(Exchange::Kind kind, const std::function<void(const Communicator& all)>& talk) {
  if (tensor_ == nullptr) return exchange_.confer(kind, talk);
  exchange_.confer(kind, [&](const Communicator&) { talk(all_); });
}

Topologies EngineRanks::topologies() const {
  const auto of = [](const MeshGroups& groups) {
    return Topologies(groups.along(Axis::data).topology(), groups.along(Axis::shard).topology(),
                      groups.along(Axis::replica).topology());
  };
  return Topologies(of(data_groups_), of(groups_)).seen_by(rank());
}

void EngineRanks::built() {
  building_ = accounts_.snapshot();
  accounts_.reset_peaks();
  accounts_.device().trim();
}

void Liveness::require() const {
  if (poison_ != nullptr) throw StateError(poison_, "end the engine, and start again from what was saved");
  if (released_) throw StateError("the engine has ended by release()", "build a new engine to train on");
}

}  // namespace zero
