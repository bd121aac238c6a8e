#include "zero/plan.h"

#include <algorithm>
#include <utility>

#include "base/codec.h"
#include "base/text.h"
#include "partition/plan_settings.h"
#include "partition/routes.h"
#include "zero/error.h"

namespace zero {

namespace {

constexpr Placements kWhole{};
constexpr Placements kSums = Placements::over_data(Placement::partial);
constexpr Placements kSlices = Placements::over_data(Placement::sharded);
constexpr Placements kSlicesOfGroups{.shard = Placement::sharded};
constexpr Row kSharded{.rest = kSlices, .between = kSlices};
constexpr Row kInside{.rest = kSlicesOfGroups, .between = kSlicesOfGroups};

// Wires on which values are rounded to a dtype.
constexpr std::array<std::pair<Wire, Dtype>, 3> kRoundedTo{
    {{Wire::fp32, Dtype::f32}, {Wire::bf16, Dtype::bf16}, {Wire::fp16, Dtype::f16}}};

struct Preset {
  std::string_view name;
  Plan (*make)();
};
constexpr std::array<Preset, 8> kPresets{{{"ddp", Plan::ddp},
                                          {"zero1", Plan::zero1},
                                          {"zero2", Plan::zero2},
                                          {"zero3", Plan::zero3},
                                          {"hybrid", Plan::hybrid},
                                          {"hybrid-zero2", Plan::hybrid_zero2},
                                          {"zeropp", Plan::zeropp},
                                          {"sdp4bit", Plan::sdp4bit}}};
constexpr std::size_t kStages = 4, kExact = 6;  // of them, the first

std::string share_of(const Row& row) {
  return row.share == 1 ? "" : shortest(row.share) + " of ";
}

// "all", "gradient and 0.8 of optimizer"; empty: none.
std::string states_on(const Plan& plan, Tier tier) {
  std::string text;
  int whole = 0;
  for (int i = 0; i < kStates; ++i) {
    const State state = static_cast<State>(i);
    const Row& row = plan[state];
    if (row.tier != tier) continue;
    whole += state != State::activation && row.share == 1;
    text += (text.empty() ? "" : " and ") + share_of(row) + std::string(name(state));
  }
  const bool all = whole == kStates - 1 && plan[State::activation].tier != tier;
  return all ? "all" : text;
}

bool holds(const Placements& placements, Placement placement) {
  const std::array all{placements.pipe, placements.replica, placements.shard, placements.tensor};
  return std::ranges::count(all, placement) > 0;
}

bool holds(const Row& row, Placement placement) {
  return holds(row.rest, placement) || holds(row.between, placement);
}

// An axis along which it is, though not so along all that are to be the same.
std::optional<Axis> odd_axis(const Placements& placements) {
  if (placements.pipe != Placement::replicated) return Axis::pipe;
  if (placements.tensor != Placement::replicated) return Axis::tensor;
  if (placements.replica == placements.shard || placements == kSlicesOfGroups) return {};
  return placements.replica == Placement::replicated ? Axis::shard : Axis::replica;
}

// Along an axis of one rank nothing is divided: it is as along the other.
Placements placements_on(const MeshShape& mesh, Placements placements) {
  if (mesh.size(Axis::shard) == 1) placements.shard = placements.replica;
  if (mesh.size(Axis::replica) == 1) placements.replica = placements.shard;
  return mesh.size(Axis::data) == 1 && holds(placements, Placement::sharded) ? kWhole : placements;
}

// Collects sentences about one plan.
class Inspection {
 public:
  Inspection(const Plan& plan, const MeshShape& mesh) : plan_(plan), mesh_(mesh) {}

  std::vector<std::string> run() && {
    counts();
    weights(State::parameter);
    weights(State::optimizer);
    gradient();
    combinations();
    axes();
    activation();
    columns();
    delay();
    return std::move(faults_);
  }

 private:
  void expect(bool good, std::string sentence) {
    if (!good) faults_.push_back(std::move(sentence));
  }

  void counts() {
    expect(mesh_.size() >= 1, "a group has at least 1 rank, not " + std::to_string(mesh_.size()));
    expect(plan_.accumulate() >= 1,
           "accumulate must be at least 1 micro-batch, not " + std::to_string(plan_.accumulate()));
    const Wire wire = plan_[State::gradient].wire;
    expect(!plan_.error_feedback() || has_codec(wire),
           "error feedback is of gradients that cross shard groups in codes, and they are reduced in " +
               (wire == Wire::native ? "their own dtype" : std::string(zero::name(wire))) +
               ": reduce them in int4, int8, fp8, int4-hadamard or bf16-codes");
    expect(
        !plan_.reproducible() || wire == Wire::native || wire == Wire::fp32,
        "reproducible sums are not rounded on their way: reduce them in fp32, not in " + std::string(zero::name(wire)));
    expect(plan_.resident_budget() >= 0,
           "resident_budget must be 0 (the two largest units) or a number of bytes, not " +
               std::to_string(plan_.resident_budget()));
    expect(plan_.overlap() >= 0 && plan_.overlap() <= Plan::kMostOverlap,
           "overlap must be 0 (by itself) or at most " + std::to_string(Plan::kMostOverlap) + " units, not " +
               std::to_string(plan_.overlap()));
  }

  void weights(State state) {
    const Row& row = plan_[state];
    const std::string who(name(state));
    if (holds(row, Placement::partial)) {
      expect(false, who + " is a value, not a sum: it can be replicated or sharded, not partial");
      return;
    }
    if (state == State::parameter && plan_.kept() != KeptCopy::none) return kept(row);
    const auto [between, rest] = places(row);
    expect(row.between == row.rest,
           who + " is " + rest + " at rest but " + between + " between micro-batches: give both the same placement");
  }

  void kept(const Row& row) {
    expect(holds(row.rest, Placement::sharded),
           "keep_gathered needs sharded parameters, as zero3 has them: else nothing is gathered that could be kept");
    expect(!holds(row.rest, Placement::sharded) || row.between == kWhole || row.rest == kSlices,
           "parameter can be kept between micro-batches along shard, or whole, not otherwise");
    expect(!differs(row.wire) || row.rest == kSlices || !holds(row.rest, Placement::sharded),
           "parameter on wire " + std::string(name(row.wire)) +
               " must be sharded over data, as zero3 has it: else nothing of it crosses shard groups");
    expect(row.tier == Tier::device, "keep_gathered needs parameters on the device, not on " +
                                         std::string(name(row.tier)) + ", where what was gathered would not be");
  }

  void gradient() {
    const Row& row = plan_[State::gradient];
    expect(!holds(row.rest, Placement::partial),
           "gradient at rest cannot be partial: the optimizer needs it replicated or sharded");
    expect(row.between != kWhole, "gradient between micro-batches cannot be replicated: use partial or sharded");
    expect(!holds(row.between, Placement::sharded) || row.rest != kWhole,
           "gradient sharded between micro-batches cannot be replicated at rest: make it sharded at rest, or partial "
           "between micro-batches");
    expect(row.between != kSlices || row.rest != kSlicesOfGroups,
           "gradient sharded over data between micro-batches cannot be sharded over shard alone at rest: give both the "
           "same placement, or make it partial between micro-batches");
  }

  void combinations() {
    if (plan_[State::optimizer].rest != kWhole) return;
    expect(!holds(plan_[State::gradient], Placement::sharded),
           "gradient sharded needs optimizer sharded: a replicated optimizer reads the whole gradient");
    expect(!holds(plan_[State::parameter].rest, Placement::sharded),
           "parameter sharded needs optimizer sharded: a rank updates only the parameters it holds");
  }

  void axes() {
    const bool updates_group = plan_[State::optimizer].rest == kSlicesOfGroups;
    for (const State state : {State::parameter, State::gradient, State::optimizer}) {
      const Row& row = plan_[state];
      if (const auto axis = odd_axis(row.rest) ? odd_axis(row.rest) : odd_axis(row.between))
        expect(false, std::string(name(state)) + " can be sharded over shard or data, or be the same along both, not " +
                          "otherwise along " + std::string(name(*axis)));
      expect(!updates_group || (row.rest != kSlices && row.between != kSlices),
             std::string(name(state)) +
                 " sharded over data needs optimizer sharded over data: a rank updates only what "
                 "it has of it");
    }
  }

  void activation() {
    const Row& row = plan_[State::activation];
    const bool replicated = row.rest == kWhole && row.between == kWhole;
    expect(replicated, "activation cannot be partitioned yet: only replicated is supported");
    const bool goes = row.tier != Tier::device || row.wire != Wire::native;
    expect(!goes || plan_.activation_budget(), "activation on tier " + std::string(name(row.tier)) + " and wire " +
                                                   std::string(name(row.wire)) +
                                                   " needs an activation budget: without one nothing goes there");
    expect(row.tier == Tier::device || row.wire == Wire::native, "activation on tier " + std::string(name(row.tier)) +
                                                                     " goes there as it is, on wire native, not " +
                                                                     std::string(name(row.wire)));
  }

  void columns() {
    for (int i = 0; i < kStates; ++i) {
      const State state = static_cast<State>(i);
      const Row& row = plan_[state];
      const std::string who(name(state));
      tier(state, row);
      if (state == State::parameter && has_codec(row.wire)) {
        expect(!differs(row.wire) || plan_.kept() != KeptCopy::none,
               who + " on wire " + std::string(name(row.wire)) +
                   " needs a copy from which it differs: keep_gathered(shard)");
        expect(holds(row.rest, Placement::sharded) || shards_by_preset(),
               "parameter on wire " + std::string(name(row.wire)) + " must be sharded: else nothing is gathered");
        continue;
      }
      if (state == State::activation && has_codec(row.wire)) continue;
      expect(!differs(row.wire), who + " on wire " + std::string(name(row.wire)) +
                                     ": only gathered parameters have a copy from which they differ");
      expect(row.wire == Wire::native || state == State::gradient,
             who + " on wire " + std::string(name(row.wire)) + " is not supported yet: only native is");
    }
  }

  // On a mesh of one rank, where nothing is sharded any more.
  bool shards_by_preset() const {
    const std::string preset = plan_.preset();
    return preset != "custom" && holds(Plan::named(preset)[State::parameter].rest, Placement::sharded);
  }

  void tier(State state, const Row& row) {
    const std::string where = std::string(name(state)) + " on tier " + std::string(name(row.tier));
    share(state, row, where);
    if (row.tier == Tier::device) return;
    expect(state != State::parameter || !Routes(plan_.on(mesh_)).publishes(),
           where + " needs ranks that update all that they hold of them: zero3 or hybrid");
    const bool slices = plan_.on(mesh_)[State::gradient].rest == kSlices;
    expect(state != State::gradient || mesh_.size(Axis::data) == 1 || slices,
           where + " needs gradients sharded at rest: zero1, zero2, zero3 or hybrid-zero2");
  }

  void share(State state, const Row& row, const std::string& where) {
    if (row.share == 1) return;
    const std::string what = "a share of " + shortest(row.share);
    expect(row.share > 0 && row.share < 1, what + " of " + where + ": it must be above 0, and at most 1");
    expect(row.tier != Tier::device, what + " of " + where + ": nothing is offloaded, all of it stays there");
    expect(state == State::optimizer,
           what + " of " + where + ": only the optimizer is divided between tiers, and gradients with it");
  }

  void delay() {
    if (!plan_.delays_update()) return;
    const Row& optimizer = plan_[State::optimizer];
    expect(optimizer.tier != Tier::device && optimizer.share == 1,
           "a delayed update needs all of the optimizer on the host or on disk: what stays on the device is computed "
           "there, beside nothing");
    expect(plan_[State::parameter].tier == Tier::device, "a delayed update needs parameters on the device, not on " +
                                                             std::string(name(plan_[State::parameter].tier)));
  }

  const Plan& plan_;
  MeshShape mesh_;
  std::vector<std::string> faults_;
};

}  // namespace

Plan Plan::ddp() {
  Plan plan;
  plan.label_ = "ddp";
  plan[State::gradient].between = kSums;
  return plan;
}

Plan Plan::zero1() {
  Plan plan = ddp();
  plan.label_ = "zero1";
  plan[State::gradient].rest = kSlices;
  plan[State::optimizer] = kSharded;
  return plan;
}

Plan Plan::zero2() {
  Plan plan = zero1();
  plan.label_ = "zero2";
  plan[State::gradient].between = kSlices;
  return plan;
}

Plan Plan::zero3() {
  Plan plan = zero2();
  plan.label_ = "zero3";
  plan[State::parameter] = kSharded;
  return plan;
}

Plan Plan::hybrid() {
  Plan plan = zero3();
  plan.label_ = "hybrid";
  plan[State::parameter] = plan[State::gradient] = plan[State::optimizer] = kInside;
  return plan;
}

Plan Plan::hybrid_zero2() {
  Plan plan = zero3();
  plan.label_ = "hybrid-zero2";
  plan[State::parameter] = kInside;
  return plan;
}

Plan Plan::zeropp() {
  Plan plan = zero3().keep_gathered(KeptCopy::shard).gather_in(Wire::int8).reduce_in(Wire::int4);
  plan.label_ = "zeropp";
  return plan;
}

Plan Plan::sdp4bit() {
  Plan plan = zero3().keep_gathered(KeptCopy::shard).gather_in(Wire::int4_differences).reduce_in(Wire::int4_hadamard);
  plan.label_ = "sdp4bit";
  return plan;
}

Plan Plan::named(std::string_view preset) {
  for (const Preset& known : kPresets) {
    if (known.name == preset) return known.make();
  }
  throw ConfigError("unknown plan " + in_quotes(preset), "one of " + joined(presets(), ", "));
}

std::vector<std::string_view> Plan::presets() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

std::vector<std::string_view> Plan::exact_presets() {
  std::vector<std::string_view> names = presets();
  names.resize(kExact);
  return names;
}

std::vector<std::string_view> Plan::stages() {
  std::vector<std::string_view> names = presets();
  names.resize(kStages);
  return names;
}

// Wires are settings of their own, and so is what is kept of parameters, but for presets that choose them.
bool Plan::has_rows_of(const Plan& other) const {
  const auto coded = [](const Row& row) { return row.wire != Wire::native; };
  const bool chosen = std::ranges::any_of(other.rows_, coded);
  for (int i = 0; i < kStates; ++i) {
    const Row& mine = rows_[static_cast<std::size_t>(i)];
    const Row& theirs = other.rows_[static_cast<std::size_t>(i)];
    const bool kept = static_cast<State>(i) == State::parameter && !chosen;
    if (mine.rest != theirs.rest || (!kept && mine.between != theirs.between)) return false;
    if (chosen && mine.wire != theirs.wire) return false;
  }
  return true;
}

std::string Plan::label() const {
  const std::string preset = this->preset();
  std::string text = preset;
  for (const Tier tier : {Tier::host, Tier::disk})
    if (const std::string states = states_on(*this, tier); !states.empty())
      text += ", " + states + " on " + std::string(name(tier));
  if (kept() != KeptCopy::none && (preset == "custom" || named(preset).kept() != kept()))
    text += ", kept copy on " + std::string(name(kept()));
  for (const PlanSetting& each : plan_settings())
    if (!each.label.empty() && std::get<bool>(each.get(*this))) text += ", " + std::string(each.label);
  return text;
}

std::string Plan::preset() const {
  const auto is = [&](const Preset& preset) {
    return on_ ? preset.name == label_ && has_rows_of(preset.make().on(*on_)) : has_rows_of(preset.make());
  };
  const auto last = std::find_if(kPresets.rbegin(), kPresets.rend(), is);  // those that choose more come last
  return last == kPresets.rend() ? "custom" : std::string(last->name);
}

Plan Plan::offload(State state, Tier tier, double share) const {
  Plan plan = *this;
  plan[state].tier = tier;
  plan[state].share = share;
  return plan;
}

Plan Plan::gather_in(Wire wire) const {
  Plan plan = *this;
  plan[State::parameter].wire = wire;
  return plan;
}

Plan Plan::keep_gathered(KeptCopy copy) const {
  Plan plan = *this;
  Row& row = plan[State::parameter];
  row.between = copy == KeptCopy::none ? row.rest : copy == KeptCopy::shard ? kSlicesOfGroups : kWhole;
  return plan;
}

KeptCopy Plan::kept() const {
  const Row& row = (*this)[State::parameter];
  if (row.between == row.rest) return KeptCopy::none;
  return row.between == kWhole ? KeptCopy::host : KeptCopy::shard;
}

Plan Plan::activations_in(Wire wire) const {
  if (wire != Wire::native && bits_of(wire) != 8)
    throw ConfigError("activations can be kept as native, fp8 or int8, not in " + std::string(zero::name(wire)));
  Plan plan = *this;
  plan[State::activation].wire = wire;
  return plan;
}

Plan Plan::reduce_in(Dtype dtype) const {
  for (const auto& [wire, sent] : kRoundedTo)
    if (sent == dtype) return reduce_in(wire);
  throw ConfigError("gradients can be reduced in fp32, bf16 or fp16, not in " + std::string(zero::name(dtype)));
}

Plan Plan::reduce_in(Wire wire) const {
  Plan plan = *this;
  plan[State::gradient].wire = wire;
  return plan;
}

std::optional<Dtype> Plan::reduction() const {
  for (const auto& [wire, sent] : kRoundedTo)
    if ((*this)[State::gradient].wire == wire) return sent;
  return {};
}

Plan Plan::on(const MeshShape& mesh, int ranks_per_host) const {
  Plan plan = *this;
  const bool several_hosts = 0 < ranks_per_host && ranks_per_host < mesh.size(Axis::data);
  if (several_hosts && overlap_ == 0 && Routes(on(mesh)).reduces_each()) return overlap(kMostOverlap).on(mesh);
  for (const State state : {State::parameter, State::gradient, State::optimizer}) {
    Row& row = plan[state];
    if (!holds(row, Placement::sharded)) continue;
    row.rest = placements_on(mesh, row.rest);
    row.between = placements_on(mesh, row.between);
    if (state == State::gradient && row.between == kWhole) row.between = kSums;
  }
  Row& parameter = plan[State::parameter];
  if (differs(parameter.wire) && kept() != KeptCopy::none && plan.kept() == KeptCopy::none)
    parameter.wire = Wire::native;  // nothing crosses
  if (plan == *this) return plan;
  plan.label_ = preset();
  plan.on_ = mesh;
  return plan;
}

std::vector<std::string> Plan::faults(const MeshShape& mesh) const {
  return Inspection(*this, mesh).run();
}

void Plan::validate(const MeshShape& mesh) const {
  const std::vector<std::string> found = faults(mesh);
  if (found.empty()) return;
  throw ConfigError("the plan " + in_quotes(label()) + " cannot run on " + mesh.text() + ": " + joined(found, "; "));
}

}  // namespace zero
