// State by name: what one engine has, another takes over under another plan, on another number of ranks, and goes on as
// if nothing had been.
#include <numeric>

#include "covering.h"
#include "optimizers.h"
#include "states.h"
#include "torch_optimizers.h"

namespace zero::test::state_test {

std::vector<Optimizer> stated_optimizers() {
  std::vector<Optimizer> all{
      Sgd{.lr = 0.1},
      Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1},
      AdaGrad{.lr = 2e-2, .lr_decay = 0.1, .initial_accumulator_value = 0.1, .eps = 1e-4},
      RmsProp{.lr = 2e-3, .eps = 1e-2, .momentum = 0.5, .centered = true},
      Adam{.lr = 2e-3, .eps = 1e-4, .amsgrad = true},
      Lion{.lr = 1e-3, .weight_decay = 0.1},
      brought<torch::optim::AdamW>(torch::optim::AdamWOptions().eps(1e-4).amsgrad(true), "AdamW"),
      brought<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), "SGD"),
      brought<torch::optim::Adagrad>(torch::optim::AdagradOptions().eps(1e-4).lr_decay(0.1), "Adagrad")};
  for (const auto& more : {narrow_moments(), whole_optimizers()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

constexpr std::array kPrecisions{Precision::fp32,      Precision::bf16,    Precision::fp16,      Precision::fp8,
                                 Precision::bf16_pure, Precision::bf16_sr, Precision::bf16_kahan};

bool has_main_weights(Precision precision) {
  return precision != Precision::bf16_pure && precision != Precision::bf16_sr && precision != Precision::bf16_kahan;
}

// A number of ranks, in shard groups of so many, and the plan that they train by.
struct Place {
  Plan plan;
  int ranks;
  int shard = 0;
};

// The last one's global batch is another.
std::vector<std::vector<Place>> chains() {
  return {{{Plan::zero3(), 4}, {Plan::zero1(), 2}, {Plan::ddp(), 1}, {Plan::zero2(), 3}},
          {{Plan::zero3(), 2}, {Plan::hybrid(), 4, 2}, {Plan::ddp(), 1}, {Plan::hybrid_zero2(), 3, 1}},
          {{Plan::hybrid_zero2(), 4, 2}, {Plan::zero1(), 2}, {Plan::hybrid(), 4, 2}, {Plan::hybrid(), 3, 1}},
          {{Plan::zero2(), 1}, {Plan::zero3(), 2}, {Plan::zero2(), 4}, {Plan::zero3(), 3}},
          {{Plan::ddp(), 2}, {Plan::zero2(), 4}, {Plan::zero3(), 1}, {Plan::zero1(), 3}},
          {{Plan::zero1(), 4}, {Plan::ddp(), 2}, {Plan::zero3(), 2}, {Plan::ddp(), 3}}};
}

// Two steps of a global batch of four, or of as many micro-batches as there are ranks.
Stretch stretch_of(const Place& place, const Optimizer& optimizer, Precision precision, int steps = 2) {
  const int accumulate = std::max(1, 4 / place.ranks);
  Stretch stretch{{place.plan.accumulate(accumulate).precision(precision).reproducible(true),
                   place.ranks,
                   optimizer,
                   {.clip = 1, .seed = 3, .float8 = {.scaling = Scaling::delayed, .history = 3}},
                   steps,
                   place.shard}};
  if (precision == Precision::fp16)
    stretch.job.options.loss_scale = LossScale{.initial = 0x1p14, .window = 3, .hysteresis = 2};
  return stretch;
}

// Which optimizer, precision, chain of plans.
using Carried = std::tuple<std::size_t, Precision, std::size_t>;
class StatesByName : public testing::TestWithParam<Carried> {};

TEST_P(StatesByName, GoOnToTheBitAlongPlansAndNumbersOfRanks) {
  const auto& [which, precision, chain] = GetParam();
  const Optimizer optimizer = stated_optimizers()[which];
  const std::vector<Place> places = chains()[chain];
  States state;
  Outcome told, uninterrupted;
  for (std::size_t i = 0; i < 3; ++i) state = trained(stretch_of(places[i], optimizer, precision), state, &told);
  const States whole = trained(stretch_of(places[2], optimizer, precision, 6), {}, &uninterrupted);
  EXPECT_EQ(difference(*whole, *state), "");
  EXPECT_EQ(difference(uninterrupted, told), "");
  // On three ranks: what was loaded is there, and any plan goes on alike.
  const Place last = places.back();
  EXPECT_EQ(difference(*state, *trained(stretch_of(last, optimizer, precision, 0), state)), "");
  const Place like{last.plan == Plan::ddp() ? Plan::zero3() : Plan::ddp(), 3};
  EXPECT_EQ(difference(*trained(stretch_of(like, optimizer, precision, 1), state),
                       *trained(stretch_of(last, optimizer, precision, 1), state)),
            "");
}

std::vector<Carried> carried() {
  std::vector<std::size_t> optimizers(stated_optimizers().size()), all_chains(chains().size());
  std::iota(optimizers.begin(), optimizers.end(), 0);
  std::iota(all_chains.begin(), all_chains.end(), 0);
  std::vector<Carried> rows =
      covering(optimizers, std::vector<Precision>(kPrecisions.begin(), kPrecisions.end()), all_chains);
  std::erase_if(rows, [](const Carried& row) {
    return std::holds_alternative<TorchOptimizer>(stated_optimizers()[std::get<0>(row)]) &&
           !has_main_weights(std::get<1>(row));
  });
  return rows;
}

std::string title_of_carried(const testing::TestParamInfo<Carried>& tested) {
  const auto& [which, precision, chain] = tested.param;
  return std::to_string(which) + in_title(std::string(name(stated_optimizers()[which]))) +
         in_title(std::string(name(precision))) + "Chain" + std::to_string(chain);
}

INSTANTIATE_TEST_SUITE_P(All, StatesByName, testing::ValuesIn(carried()), title_of_carried);

const AdamW kUsual{.lr = 2e-3, .eps = 1e-4, .weight_decay = 0.1};

TEST(States, TellOfEveryTensorAsItsModelHasIt) {
  const States state = trained(stretch_of({Plan::zero3(), 4}, Muon{}, Precision::bf16), {});
  const auto shape = [&](const StateKey& key) { return state->tensors()[state->find(key)].shape; };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape({"filters.weight", StateKind::main_weight}), (Shape{20, 3, 3, 3}));
  EXPECT_EQ(shape({"turned", StateKind::moment, "momentum_buffer"}), (Shape{11, 19}));
  EXPECT_EQ(shape({"empty", StateKind::parameter}), (Shape{0, 4}));
  EXPECT_EQ(shape({"fixed.weight", StateKind::parameter}), (Shape{13, 13}));
  EXPECT_EQ(shape({"embed.weight", StateKind::moment, "exp_avg_sq"}), (Shape{29, 13}));  // Muon's rest
  EXPECT_THROW(static_cast<void>(state->find({"turned", StateKind::moment, "exp_avg_sq"})), std::out_of_range);
  EXPECT_EQ(state->tensors()[state->find({"mask", StateKind::buffer})].dtype, Dtype::u8);
  EXPECT_EQ(state->bytes({"mask", StateKind::buffer}), (std::vector<char>{0, 1, 0, 1, 0}));
  EXPECT_EQ(state->scalars().steps, 2);
  EXPECT_EQ(state->scalars().micro_batches, 8);
  EXPECT_EQ(state->scalars().updates.at("turned"), 2);
  EXPECT_EQ(state->scalars().updates.at("fixed.weight"), 0);
}

// Row-major values, whatever the memory order: those that a gather scope shows.
TEST(States, AreRowMajor) {
  for (const Plan& plan : all_plans())
    on_ranks<StatesModelImpl>({plan, 3, kUsual}, {}, [](StatesModelImpl& model, Engine& engine, int) {
      train_step(model, engine);
      const at::Tensor filters = engine.main_parameter(model.filters->weight);
      const at::Tensor turned = engine.main_parameter(model.turned);
      ASSERT_FALSE(filters.is_contiguous());
      const EngineState state = engine.state();
      const at::Tensor buffer = model.named_buffers()["turned_buffer"];
      for (const StatePiece& piece : state.pieces()) {
        const StateTensor& tensor = state.tensors()[piece.tensor()];
        const bool stored = tensor.key.kind == StateKind::parameter;
        at::Tensor expected;
        if (stored && tensor.key.name == "filters.weight") expected = filters;
        if (stored && tensor.key.name == "turned") expected = turned;
        if (tensor.key.name == "turned_buffer") expected = buffer;
        if (!expected.defined()) continue;
        const at::Tensor flat = expected.contiguous().flatten();
        piece.read([&](std::int64_t begin, std::int64_t end, const void* values) {
          EXPECT_EQ(std::memcmp(flat.const_data_ptr<float>() + begin, values,
                                static_cast<std::size_t>(end - begin) * sizeof(float)),
                    0);
        });
      }
    });
}

// A layer that is unfrozen while it trains: what is loaded before and after it is.
TEST(States, GoOnWithLayersThatAreUnfrozen) {
  for (const Optimizer& optimizer : std::vector<Optimizer>{kUsual, Adafactor{}, narrow_moments()[1], Sgd{.lr = 0.1}})
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan}) {
      SCOPED_TRACE(std::string(name(optimizer)) + " " + std::string(name(precision)));
      const auto stretch = [&](const Place& place, int steps) {
        Stretch result = stretch_of(place, optimizer, precision, steps);
        result.unfreezes = true;
        return result;
      };
      const States whole = trained(stretch({Plan::zero3(), 4}, 4), {});
      EXPECT_EQ(whole->scalars().updates.at("fixed.weight"), 3);
      const States before = trained(stretch({Plan::zero3(), 4}, 1), {});
      EXPECT_EQ(before->scalars().updates.at("fixed.weight"), 0);
      EXPECT_EQ(difference(*whole, *trained(stretch({Plan::zero1(), 2}, 3), before)), "");
      const States after = trained(stretch({Plan::ddp(), 1}, 2), {});
      EXPECT_EQ(difference(*whole, *trained(stretch({Plan::zero3(), 2}, 2), after)), "");
    }
}

// A layer that comes without state of its optimizer begins with a fresh one, whenever it is unfrozen. One that is
// frozen keeps the state that it comes with.
TEST(States, AreOfLayersThatAreFrozenThereOrHere) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::bf16_kahan}) {
    const States frozen = trained(stretch_of({Plan::zero3(), 2}, kUsual, precision), {});
    Stretch built = stretch_of({Plan::zero1(), 4}, kUsual, precision, 1), later = built;
    built.trained = true;
    later.unfreezes = true;
    const States thawed = trained(built, frozen);
    EXPECT_EQ(thawed->scalars().updates.at("fixed.weight"), 1);
    EXPECT_EQ(difference(*trained(later, frozen), *thawed), "");
    EXPECT_EQ(difference(*thawed, *trained(stretch_of({Plan::zero3(), 3}, kUsual, precision, 0), thawed)), "");
  }
}

// With a live engine that has gone elsewhere: what it had is gone.
TEST(States, ReplaceWhatAnEngineHas) {
  for (const Plan& plan : all_plans()) {
    const Job job{plan.bf16(), 2, kUsual, {.clip = 1, .seed = 3}};
    std::array<States, 3> states;
    for (States& state : states) state = std::make_shared<MemoryState>();
    on_ranks<StatesModelImpl>(job, {}, [&](StatesModelImpl& model, Engine& engine, int) {
      train_step(model, engine);
      states[0]->add(engine.state());
      train_step(model, engine);
      states[1]->add(engine.state());
      engine.load_state(*states[0]);
      EXPECT_EQ(engine.steps(), 1);
      train_step(model, engine);
      states[2]->add(engine.state());
    });
    EXPECT_EQ(difference(*states[1], *states[2]), "");
  }
}

TEST(States, BringTheirSeedAndTheirLossScale) {
  const States state = trained(stretch_of({Plan::zero3(), 2}, kUsual, Precision::fp16), {});
  ASSERT_TRUE(state->scalars().loss_scaler.has_value());
  EXPECT_EQ(state->scalars().loss_scaler->clean_steps, 2);
  Stretch other = stretch_of({Plan::ddp(), 2}, kUsual, Precision::fp16, 0);
  other.job.options.seed = 4;
  EXPECT_EQ(difference(*state, *trained(other, state)), "");
}

TEST(States, AreRefusedInTheMiddleOfAStep) {
  on_ranks<StatesModelImpl>({Plan::zero2().accumulate(2), 2, kUsual}, {}, [](auto& model, Engine& engine, int) {
    const auto state = std::make_shared<MemoryState>();
    engine.backward(model.loss(0));
    const std::vector<std::string> words{"1 of its 2 micro-batches", "step()", "discard()"};
    EXPECT_TRUE(says(thrown_by([&] { static_cast<void>(engine.state()); }), words));
    EXPECT_TRUE(says(thrown_by([&] { engine.load_state(*state); }), words));
    engine.discard();
    EXPECT_EQ(thrown_by([&] { static_cast<void>(engine.state()); }), "");
    {
      const Gather scope = gather(model.parameters());
      EXPECT_TRUE(says(thrown_by([&] { static_cast<void>(engine.state()); }), {"state()", "zero::gather"}));
      EXPECT_TRUE(says(thrown_by([&] { engine.load_state(*state); }), {"load_state()", "zero::gather"}));
    }
    engine.release();
    EXPECT_TRUE(says(thrown_by([&] { static_cast<void>(engine.state()); }), {"release()"}));
  });
}

TEST(States, AreReadBeforeTheEngineGoesOn) {
  on_ranks<StatesModelImpl>({Plan::zero3(), 2, kUsual}, {}, [](StatesModelImpl& model, Engine& engine, int) {
    const auto read = [](const EngineState& state) {
      return thrown_by([&] { state.pieces().front().read([](auto, auto, const void*) {}); });
    };
    const EngineState first = engine.state();
    engine.backward(model.loss(0));
    EXPECT_EQ(read(first), "");
    engine.step();
    EXPECT_TRUE(says(read(first), {"gone on", "state()"}));
    const EngineState second = engine.state();
    EXPECT_EQ(read(second), "");
    { const Gather scope = gather({model.turned}); }
    EXPECT_TRUE(says(read(second), {"gone on"}));
    const EngineState third = engine.state();
    engine.release();
    EXPECT_TRUE(says(read(third), {"ended"}));
  });
}

// What each rank is told that loads a state, of which nothing is taken.
std::string refusal(const std::function<void(MemoryState&, int rank)>& spoil) {
  std::string text;
  std::mutex mutex;
  const auto before = std::make_shared<MemoryState>(), after = std::make_shared<MemoryState>();
  const std::array<States, 2> spoilt{std::make_shared<MemoryState>(), std::make_shared<MemoryState>()};
  on_ranks<StatesModelImpl>({Plan::zero1().bf16(), 2, kUsual}, {},
                            [&](StatesModelImpl& model, Engine& engine, int rank) {
                              train_step(model, engine);
                              const EngineState state = engine.state();
                              before->add(state);
                              MemoryState& mine = *spoilt[static_cast<std::size_t>(rank)];
                              mine.add(state);
                              spoil(mine, rank);
                              const std::string told = thrown_by([&] { engine.load_state(mine); });
                              after->add(engine.state());
                              const std::lock_guard lock(mutex);
                              text += told + "\n";
                            });
  EXPECT_EQ(difference(*before, *after), "");
  return text;
}

TEST(States, AreRefusedWithEveryFault) {
  const std::string text = refusal([](MemoryState& state, int) {
    std::vector<StateTensor>& tensors = state.tensors_to_change();
    tensors[state.find({"turned", StateKind::moment, "exp_avg_sq"})].key.part = "7";
    tensors[state.find({"filters.weight", StateKind::main_weight})].shape = {20, 27};
    state.scalars_to_change().updates.erase("bias");
  });
  EXPECT_TRUE(says(text, {"rank 0", "rank 1", "turned moment exp_avg_sq, fp32 [11, 19], is missing",
                          "turned moment 7, fp32 [11, 19], is not expected",
                          "filters.weight main weight, fp32 [20, 3, 3, 3], is given as fp32 [20, 27]",
                          "bias: how often it was updated is missing"}));
}

TEST(States, AreRefusedWhereRanksLoadOthers) {
  const std::string text = refusal([](MemoryState& state, int rank) { state.scalars_to_change().steps += rank; });
  EXPECT_TRUE(says(text, {"rank 0", "rank 1", "different states", "steps 1", "steps 2"}));
}

TEST(States, EndAnEngineWhereOneRankCannotReadThem) {
  std::array<std::string, 2> told;
  on_ranks<StatesModelImpl>({Plan::zero3(), 2, kUsual}, {}, [&](StatesModelImpl& model, Engine& engine, int rank) {
    MemoryState mine;
    mine.add(engine.state());
    mine.before_read = [&](std::size_t) {
      if (rank == 1) throw std::runtime_error("the disk is gone");
    };
    told[static_cast<std::size_t>(rank)] = thrown_by([&] { engine.load_state(mine); });
    EXPECT_TRUE(says(thrown_by([&] { engine.backward(model.loss(0)); }), {"load_state() failed halfway"}));
  });
  EXPECT_TRUE(says(told[1], {"rank 1: the disk is gone"}));
  EXPECT_EQ(told[0], told[1]);
}

}  // namespace zero::test::state_test
