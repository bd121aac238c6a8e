#include "planner/price.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "base/text.h"
#include "partition/moments.h"
#include "partition/plan_settings.h"
#include "partition/routes.h"
#include "partition/slices.h"
#include "partition/tensor_faults.h"
#include "planner/loss_price.h"
#include "planner/offload.h"
#include "planner/theory.h"
#include "zero/error.h"

namespace planner {
namespace {

using zero::State;

// Beyond these, bytes of a rank could pass what 64 bits hold.
constexpr double kMostParameters = 1e15;
constexpr double kMostTokens = 1e10;  // of a micro-batch
constexpr int kMostMicroBatches = 1 << 13;
constexpr double kMostReduced = 1e17;   // parameters times micro-batches
constexpr double kMostElements = 1e16;  // that go through a micro-batch's operators

std::string in_words(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

void check_size(double value, double most, const std::string& what) {
  if (!(value <= most)) throw zero::ConfigError(what + " are more than can be planned for: at most " + in_words(most));
}

double size(std::int64_t value) {
  return static_cast<double>(value);
}

// Columns of the results of all products of matrices, and of what flows between them.
double columns(const models::LlamaConfig& config) {
  const double heads = size(config.num_attention_heads) + size(config.num_key_value_heads);
  const double layer =
      2 * (size(config.hidden_size) + heads * size(config.head_size())) + 3 * size(config.intermediate_size);
  return size(config.num_hidden_layers) * layer + size(config.vocab_size);
}

void check_sizes(const Request& request) {
  const double parameters = size(request.shape.parameters), tokens = size(request.batch) * size(request.seq);
  check_size(parameters, kMostParameters, "the model's parameters");
  check_size(tokens, kMostTokens, "the tokens of a micro-batch, batch times seq,");
  check_size(tokens * columns(request.shape.config), kMostElements, "the elements of a micro-batch's activations");
  for (const zero::Plan& plan : request.plans) {
    check_size(plan.accumulate(), kMostMicroBatches, "the micro-batches of a step");
    check_size(parameters * plan.accumulate(), kMostReduced,
               "the gradients of a step, parameters times micro-batches,");
  }
}

// What an engine would refuse.
void check_tensor(const Request& request) {
  std::vector<std::string> faults;
  for (const zero::Plan& plan : request.plans)
    for (const std::string& fault : zero::tensor_faults(plan)) faults.push_back(plan.label() + ": " + fault);
  if (const std::string fault = zero::tensor_fault(request.optimizer); !fault.empty())
    faults.push_back("optimizer " + std::string(name(request.optimizer)) + " " + fault);
  if (!faults.empty())
    throw zero::ConfigError("over a tensor axis there is no " + zero::joined(faults, "; no "),
                            "leave it out, or --tensor");
  const double tokens = size(request.batch) * size(request.seq), layers = size(request.shape.config.num_hidden_layers);
  for (const zero::Plan& plan : request.plans)
    check_size(8 * layers * tokens * size(request.shape.config.hidden_size) * plan.accumulate(), kMostReduced,
               "the elements that a step moves along the tensor axis");
}

void check(const Request& request) {
  check_sizes(request);
  if (request.hosts > 1 && request.memory == zero::Memory::common)
    throw zero::ConfigError("memory is common on one host only, not on " + std::to_string(request.hosts),
                            "leave --memory out, or give one host");
  if (request.ranks < 1 || request.hosts < 1 || request.ranks % request.hosts != 0)
    throw zero::ConfigError(
        std::to_string(request.ranks) + " ranks do not divide among " + std::to_string(request.hosts) + " hosts",
        "give as many ranks to each host");
  if (request.ranks / request.hosts % request.shape.tensor != 0)
    throw zero::ConfigError(std::to_string(request.ranks / request.hosts) +
                                " ranks of a host do not divide among tensor axes of " +
                                std::to_string(request.shape.tensor),
                            "give a tensor axis as many ranks as divide a host's");
  const zero::MeshShape mesh = request.mesh();
  for (const zero::Plan& plan : request.plans)
    if (const std::string missing = zero::missing_groups(plan, mesh, request.data_ranks_per_host()); !missing.empty())
      throw zero::ConfigError(plan.label() + ": " + missing, "make a group of each host's ranks: --shard-ranks " +
                                                                 std::to_string(request.data_ranks_per_host()));
  if (request.shape.tensor > 1) check_tensor(request);
  const std::int64_t positions = request.shape.config.max_position_embeddings;
  if (request.seq > positions)
    throw zero::ConfigError("a sequence of " + std::to_string(request.seq) + " tokens exceeds the model's " +
                                std::to_string(positions) + " positions",
                            "shorten the sequence or raise max_position_embeddings");
}

// Bytes that the ranks together hold for each element behind a parameter that belongs to none.
class Padding {
 public:
  Padding(const zero::Plan& plan, const Arrangement& arrangement)
      : plan_(plan),
        rules_(arrangement.rules),
        mesh_(arrangement.layout.mesh()),
        levels_(zero::accumulation_levels(plan, mesh_.size(zero::Axis::data))) {
    for (std::size_t i = 0; i < arrangement.repeats.size(); ++i)
      add(arrangement.layout.units()[i], arrangement.repeats[i]);
  }
  std::int64_t of_a_rank() const { return bytes_ / mesh_.size(); }

 private:
  void add(const zero::UnitLayout& unit, std::int64_t times) {
    const std::vector<zero::Slot>& slots = unit.slots();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::int64_t next = i + 1 < slots.size() ? slots[i + 1].begin : unit.length();
      bytes_ += times * (next - slots[i].end()) * of_an_element(unit, slots[i]);
    }
  }

  std::int64_t of_an_element(const zero::UnitLayout& unit, const zero::Slot& slot) const {
    const zero::Optimizer& optimizer = rules_[static_cast<std::size_t>(slot.index)].optimizer;
    const std::int64_t parameter = size_of(unit.dtype());
    const std::int64_t gradient = size_of(plan_.gradient_dtype(unit.dtype())) * levels_;
    const std::int64_t state =
        plan_.remainder_bytes(unit.dtype()) + moments(optimizer) * size_of(zero::moment_dtype(optimizer, unit.dtype()));
    return copies(State::parameter) * parameter + copies(State::gradient) * gradient + copies(State::optimizer) * state;
  }

  std::int64_t copies(State state) const { return mesh_.size() / divided_among(plan_, state, mesh_); }

  const zero::Plan& plan_;
  const std::vector<zero::ParameterRule>& rules_;
  zero::MeshShape mesh_;
  int levels_;
  std::int64_t bytes_ = 0;
};

zero::Topology topology_of(int ranks, int hosts) {
  return {.ranks_per_host = ranks / hosts, .two_levels = 1 < hosts && hosts < ranks};
}

zero::Estimate estimate(const zero::Plan& plan, const Arrangement& arrangement, zero::Memory memory, int hosts) {
  return zero::estimate(plan, arrangement.layout, arrangement.rules, arrangement.repeats, arrangement.trace, memory,
                        {topology_of(arrangement.layout.ranks(), hosts), arrangement.layout.mesh()});
}

bool on_devices(const Request& request) {
  return request.profile.device_memory > 0 && !request.in_host_memory;
}

// Buffers of tiers are in the host's memory.
zero::Memory memory_of(const Request& request, const zero::Plan& plan) {
  const bool beside = on_devices(request) && !offload_of(plan).empty();
  return beside ? zero::Memory::device : request.memory;
}

// With the budget's price.
void add_seconds(const Request& request, Cost& cost) {
  const MicroBatch work = micro_batch(request, cost.plan);
  const zero::MeshShape mesh = request.mesh();
  cost.missing = missing_for_tiers(cost.plan, request.profile);
  if (!cost.priced()) {
    cost.seconds = cost.speed.tokens_per_second = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  cost.tiers = tier_seconds(cost.plan, cost.estimate, request.profile, mesh);
  cost.seconds = step_seconds(work, cost.plan, cost.estimate, request.profile, mesh, cost.again.seconds) +
                 tensor_seconds(cost.tensor, request.profile);
  cost.speed =
      speed_of(work, cost.plan, request.shape.parameters, cost.seconds, request.profile, mesh.size(zero::Axis::data));
}

Cost price(const Request& request, const zero::Plan& plan, const Activations& kept, const Recomputation& again) {
  const zero::MeshShape mesh = request.mesh();
  const Arrangement arrangement(request.shape, plan, request.optimizer, mesh);
  Cost cost{.plan = plan,
            .estimate = estimate(plan, arrangement, memory_of(request, plan), request.hosts),
            .activations = kept,
            .batch = request.batch,
            .again = again};
  cost.tensor = tensor_wire(micro_batch(request, plan), request.shape.tensor).times(plan.accumulate());
  cost.rounds = rounds(plan, mesh);
  cost.padding = Padding(plan.on(mesh), arrangement).of_a_rank();
  const Peak peak = peak_of(cost.estimate, kept);
  cost.peak = peak.bytes;
  cost.moment = peak.moment;
  add_seconds(request, cost);
  if (request.device_memory) cost.excess = cost.peak - *request.device_memory;
  const std::int64_t here = request.ranks / request.hosts;  // ranks of a host
  const auto excess = [&](zero::Tier tier, const std::optional<std::int64_t>& limit) {
    return limit ? here * cost.estimate.on(tier).total() - *limit : 0;
  };
  cost.host_excess = excess(zero::Tier::host, request.host_memory);
  cost.disk_excess = excess(zero::Tier::disk, request.disk_space);
  return cost;
}

// Where ranks compute on devices there is a tier between these and the disks.
std::vector<zero::Tier> tiers_to_choose(const Request& request) {
  std::vector<zero::Tier> tiers;
  if (request.host_memory && on_devices(request)) tiers.push_back(zero::Tier::host);
  if (request.disk_space) tiers.push_back(zero::Tier::disk);
  return tiers;
}

// What the plans' budgets cost: mostly the same for all that gather parameters, and for all that do not.
class Budgets {
 public:
  explicit Budgets(const Request& request) : request_(request) {}

  Recomputation of(const zero::Plan& plan) {
    const MicroBatch work = micro_batch(request_, plan);
    for (const auto& [other, known] : known_)
      if (other.gathers == work.gathers && other.precision == work.precision && other.budget == work.budget &&
          other.way == work.way)
        return known;
    return known_.emplace_back(work, price_of_budget(work, pace_for(request_.profile, work.precision))).second;
  }

 private:
  const Request& request_;
  std::vector<std::pair<MicroBatch, Recomputation>> known_;
};

}  // namespace

namespace {

// The largest of the layers, and of the units behind them in the order of use. An embedding lies ahead of them.
struct LargestSlices {
  std::int64_t layer = 0, behind = 0;
};

LargestSlices largest_slices(const std::vector<std::int64_t>& slices, std::int64_t layers) {
  const auto units = static_cast<std::int64_t>(slices.size());
  const std::int64_t first = units > layers ? 1 : 0, behind = std::min(first + layers, units);
  const auto largest = [&](std::int64_t begin, std::int64_t end) {
    return begin < end ? *std::max_element(slices.begin() + begin, slices.begin() + end) : 0;
  };
  return {largest(first, behind), largest(behind, units)};
}

}  // namespace

// The state and what is kept from step to step is there all the time; a slice's sum only while its unit is reduced,
// which is once the unit's gradients are complete: first those behind the layers, at last the embedding's.
Peak peak_of(const zero::Estimate& estimate, const Activations& activations) {
  const std::int64_t always = estimate.held.peak_held - estimate.largest_slice();
  const LargestSlices slices = largest_slices(estimate.slices, activations.layers);
  const std::int64_t reducing =
      std::max({activations.in_backward + slices.behind, activations.in_layers + std::max(slices.behind, slices.layer),
                activations.in_embedding + estimate.largest_slice()});
  if (reducing > activations.bytes) return {always + reducing, "backward"};
  return {always + activations.bytes, activations.moment};
}

int most_micro_batches(const Shape& shape) {
  return static_cast<int>(std::min<double>(kMostMicroBatches, kMostReduced / size(shape.parameters)));
}

MicroBatch micro_batch(const Request& request, const zero::Plan& plan) {
  return {request.shape.config,
          request.batch,
          request.seq,
          plan.precision(),
          request.product_scratch,
          plan.activation_budget(),
          gathers_parameters(plan, request.mesh()),
          stored_way(plan, request.profile)};
}

bool gathers_parameters(const zero::Plan& plan, const zero::MeshShape& mesh) {
  const zero::Plan here = plan.on(mesh);
  return here[State::parameter].tier != zero::Tier::device || divided_among(here, State::parameter, mesh) > 1;
}

Pace pace_for(const Profile& profile, zero::Precision precision) {
  return profile.knows(precision) ? profile.pace(precision) : profile_named("h100").pace(precision);
}

Arrangement::Arrangement(const Shape& shape, const zero::Plan& plan, const zero::Optimizer& optimizer,
                         const zero::MeshShape& mesh)
    : layout({}, 1), rules(parameter_rules(optimizer, {}, shape.infos)) {
  layout = zero::Layout(specs(shape, plan), mesh, slices_of(plan, rules));
  repeats = shape.repeats;
  repeats.resize(layout.units().size(), 1);
  trace = order_of_use(shape.config, layout, repeats);
}

zero::Estimate estimate(const Shape& shape, const zero::Plan& plan, const zero::Optimizer& optimizer,
                        const zero::MeshShape& mesh, zero::Memory memory, int hosts) {
  return estimate(plan, Arrangement(shape, plan, optimizer, mesh), memory, hosts);
}

Cost price(const Request& request, const zero::Plan& plan) {
  check(request);
  const MicroBatch work = micro_batch(request, plan);
  return price(request, plan, activations(work), price_of_budget(work, pace_for(request.profile, work.precision)));
}

Cost price_bytes(const Request& request, const zero::Plan& plan) {
  check(request);
  return price(request, plan, activations(micro_batch(request, plan)), {});
}

std::vector<Cost> price(const Request& request) {
  check(request);
  Budgets budgets(request);
  std::vector<Cost> costs;
  for (const zero::Plan& plan : request.plans) {
    const Activations kept = activations(micro_batch(request, plan));
    costs.push_back(price(request, plan, kept, budgets.of(plan)));
    if (costs.back().fits() || !request.chooses_tiers) continue;
    for (const zero::Plan& choice : tier_choices(plan, tiers_to_choose(request), request.mesh())) {
      Cost cost = price(request, choice, kept, budgets.of(choice));
      if (!cost.fits()) continue;
      costs.back() = std::move(cost);
      break;
    }
  }
  return costs;
}

}  // namespace planner
