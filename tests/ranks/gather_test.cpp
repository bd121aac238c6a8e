// Whole parameters in a scope, to read and to write; and what happens to those who do without.
#include <torch/torch.h>

#include <set>
#include <sstream>

#include "lm.h"
#include "zero/error.h"

namespace zero::test::gather_test {

const Job kJob{.ranks = 3};

// Body under every plan in fp32 and bf16.
template <class Body>
void everywhere(const Body& body) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Job job = kJob;
    job.plan = job.plan.precision(precision);
    under_every_plan(job, [&](const Job& each) { on_ranks<Lm>(each, {}, body); });
  }
}

at::Tensor main_of(Engine& engine, const at::Tensor& parameter) {
  return engine.main_parameter(parameter);
}

// What operators see of a parameter.
at::Tensor seen(const at::Tensor& parameter) {
  const torch::NoGradGuard no_grad;
  return parameter.clone().to(at::kFloat);
}

void fill(const at::Tensor& parameter, double value) {
  const torch::NoGradGuard no_grad;
  at::Tensor(parameter).fill_(value);
}

// Evicts what the pager kept resident.
void use_everything(Lm& model) {
  const torch::NoGradGuard no_grad;
  model.loss(0);
}

TEST(Gather, ReadsThroughRawPointers) {
  everywhere([](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    const at::Tensor weight = model.blocks[1]->as<Block>()->up->weight;
    const at::Tensor expected = seen(weight);
    use_everything(model);
    const auto scope = gather(model.parameters());
    const at::Tensor read = at::from_blob(weight.data_ptr(), weight.sizes(), weight.options().requires_grad(false));
    EXPECT_TRUE(read.to(at::kFloat).equal(expected));
  });
}

// What writes whole storages to files, or tells tensors apart by them, finds parameters as those of any module.
TEST(Gather, HasParametersInStoragesOfTheirOwn) {
  everywhere([](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    const auto scope = gather(model.parameters());
    std::set<const void*> storages;
    for (const auto& item : model.named_parameters()) {
      const at::Tensor& parameter = item.value();
      EXPECT_EQ(parameter.storage().nbytes(), parameter.nbytes()) << item.key();
      EXPECT_EQ(parameter.storage().data(), parameter.const_data_ptr()) << item.key();
      EXPECT_TRUE(storages.insert(parameter.storage().unsafeGetStorageImpl()).second) << item.key();
      std::ostringstream file, copied;
      torch::save(parameter.detach(), file);
      torch::save(parameter.detach().clone(), copied);
      EXPECT_EQ(file.str().size(), copied.str().size()) << item.key();
    }
  });
}

// A view that a scope ends before, and a part of a parameter, are of the parameter that they were made of.
TEST(Gather, KnowsPartsOfParameters) {
  everywhere([](Lm& model, Engine& engine, int) {
    const at::Tensor weight = model.blocks[1]->as<Block>()->up->weight;
    const at::Tensor part = weight.detach().narrow(0, 1, 2);
    use_everything(model);
    EXPECT_TRUE(main_of(engine, part).equal(main_of(engine, weight).narrow(0, 1, 2)));
    EXPECT_TRUE(says(thrown_by([&] { fill(part, 1); }), {"blocks.1.up.weight", "zero::gather"}));
    {
      const auto scope = gather({part});
      fill(part, 0.5);
    }
    EXPECT_EQ(seen(weight).eq(0.5).all(1).sum().item<std::int64_t>(), 2);
  });
}

TEST(Gather, KeepsWhatAllRanksWrote) {
  everywhere([](Lm& model, Engine& engine, int) {
    const at::Tensor weight = model.blocks[0]->as<Block>()->down->weight;
    {
      const auto scope = gather({weight});
      fill(weight, 0.5);
      EXPECT_TRUE(seen(weight).eq(0.5).all().item<bool>());
    }
    use_everything(model);
    EXPECT_TRUE(seen(weight).eq(0.5).all().item<bool>());
    EXPECT_TRUE(main_of(engine, weight).eq(0.5).all().item<bool>());
    train_step(model, engine);
    EXPECT_TRUE((main_of(engine, weight) - 0.5).abs().gt(0).any().item<bool>());
    EXPECT_TRUE((main_of(engine, weight) - 0.5).abs().lt(0.05).all().item<bool>());
  });
}

TEST(Gather, KeepsWhatWasWrittenThroughRawPointers) {
  everywhere([](Lm& model, Engine& engine, int) {
    const at::Tensor bias = model.bias;
    {
      const auto scope = gather({bias});
      at::from_blob(bias.data_ptr(), bias.sizes(), bias.options().requires_grad(false)).fill_(2);
    }
    use_everything(model);
    EXPECT_TRUE(main_of(engine, bias).eq(2).all().item<bool>());
  });
}

TEST(Gather, FromOneRankItsCopyWins) {
  everywhere([](Lm& model, Engine& engine, int rank) {
    const at::Tensor weight = model.embed->weight;
    {
      const auto scope = gather({weight, model.bias}, 1);
      fill(weight, rank == 1 ? 0.25 : -1);
    }
    use_everything(model);
    EXPECT_TRUE(seen(weight).eq(0.25).all().item<bool>());
    EXPECT_TRUE(main_of(engine, weight).eq(0.25).all().item<bool>());
  });
}

TEST(Gather, LeavesUntouchedMainWeightsAsTheyWere) {
  everywhere([](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    const auto before = parameters_of(model, engine);
    { const auto scope = gather(model.parameters()); }
    { const auto scope = gather(model.parameters(), 2); }
    {
      const auto scope = gather(model.parameters());
      fill(model.bias, 1);
    }
    for (const auto& [name, value] : parameters_of(model, engine))
      EXPECT_EQ(value.equal(before.at(name)), name.rfind("bias", 0) != 0) << name;
  });
}

TEST(Gather, DropsTheChangeWhenLeftByAnException) {
  everywhere([](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    const auto before = parameters_of(model, engine);
    EXPECT_THROW(
        {
          const auto scope = gather(model.parameters());
          fill(model.bias, 9);
          throw std::runtime_error("inside the scope");
        },
        std::runtime_error);
    for (const auto& [name, value] : parameters_of(model, engine)) EXPECT_TRUE(value.equal(before.at(name))) << name;
  });
}

TEST(Gather, NestsAndTakesAParameterTwice) {
  everywhere([](Lm& model, Engine& engine, int) {
    {
      const auto outer = gather({model.bias, model.bias});
      fill(model.bias, 3);
      {
        const auto inner = gather(model.parameters());
        fill(model.norm->weight, 4);
      }
      EXPECT_TRUE(seen(model.bias).eq(3).all().item<bool>());
    }
    use_everything(model);
    EXPECT_TRUE(main_of(engine, model.bias).eq(3).all().item<bool>());
    EXPECT_TRUE(main_of(engine, model.norm->weight).eq(4).all().item<bool>());
  });
}

TEST(Gather, LeavesOtherTensorsAlone) {
  on_ranks<Lm>({.plan = Plan::zero3()}, {}, [](Lm&, Engine&, int rank) {
    const at::Tensor mine = at::full({3}, rank);
    { const auto scope = gather({mine, at::Tensor()}, 0); }
    EXPECT_TRUE(mine.eq(rank).all().item<bool>());
  });
}

TEST(Gather, ForwardAndBackwardMayRunInside) {
  under_every_plan(kJob, [](const Job& job) {
    EXPECT_EQ(difference(train<Lm>(job), train_by<Lm>(job, {},
                                                      [](Lm& model, Engine& engine, Outcome& run, int) {
                                                        for (int step = 0; step < 3; ++step) {
                                                          {
                                                            const auto scope = gather(model.blocks->parameters());
                                                            engine.backward(model.loss(engine.micro_batch()));
                                                          }
                                                          run.record(engine.step());
                                                        }
                                                      })),
              "");
  });
}

TEST(Gather, BetweenForwardAndBackwardChangesNothing) {
  under_every_plan(kJob, [](const Job& job) {
    EXPECT_EQ(difference(train<Lm>(job), train_by<Lm>(job, {},
                                                      [](Lm& model, Engine& engine, Outcome& run, int) {
                                                        for (int step = 0; step < 3; ++step) {
                                                          const at::Tensor loss = model.loss(engine.micro_batch());
                                                          { const auto scope = gather(model.parameters()); }
                                                          engine.backward(loss);
                                                          { const auto scope = gather(model.parameters()); }
                                                          run.record(engine.step());
                                                        }
                                                      })),
              "");
  });
}

TEST(Gather, AStepOrReleaseInsideThrows) {
  everywhere([](Lm& model, Engine& engine, int) {
    engine.backward(model.loss(engine.micro_batch()));
    {
      const auto scope = gather({model.bias});
      EXPECT_THROW(engine.step(), StateError);
      EXPECT_THROW(engine.release(), StateError);
    }
    EXPECT_TRUE(engine.step().applied);
  });
}

TEST(Gather, SavesAWholeModuleAndWritesALoadedOne) {
  under_every_plan(kJob, [](const Job& job) {
    on_ranks<Lm>(job, {}, [](Lm& model, Engine& engine, int) {
      train_step(model, engine);
      const auto before = parameters_of(model, engine);
      std::stringstream file;
      {
        const auto scope = gather(model.parameters());
        torch::serialize::OutputArchive out;
        model.save(out);
        out.save_to(file);
      }
      train_step(model, engine);
      torch::serialize::InputArchive in;
      in.load_from(file);
      Lm loaded;
      loaded.load(in);
      {
        const torch::NoGradGuard no_grad;
        const auto scope = gather(model.parameters());
        std::vector<at::Tensor> to = model.parameters(), from = loaded.parameters();
        for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
      }
      for (const auto& [name, value] : parameters_of(model, engine)) EXPECT_TRUE(value.equal(before.at(name))) << name;
    });
  });
}

template <class Call>
void expect_state_error(const Call& call, const std::string& parameter) {
  try {
    call();
    ADD_FAILURE() << "a change of '" << parameter << "' went unnoticed";
  } catch (const StateError& error) {
    EXPECT_NE(std::string(error.what()).find("'" + parameter + "'"), std::string::npos) << error.what();
  }
}

TEST(Outside, WritingAParameterThrowsAndNamesIt) {
  everywhere([](Lm& model, Engine&, int) {
    const torch::NoGradGuard no_grad;
    const at::Tensor weight = model.blocks[1]->as<Block>()->up->weight;
    expect_state_error([&] { at::Tensor(weight).mul_(2); }, "blocks.1.up.weight");
    expect_state_error([&] { at::Tensor(weight)[0].zero_(); }, "blocks.1.up.weight");
    expect_state_error([&] { model.bias.data().fill_(1); }, "bias");
    expect_state_error([&] { torch::nn::init::ones_(model.embed->weight); }, "embed.weight");
  });
}

TEST(Outside, ReadingMemoryThatIsNotResidentThrows) {
  on_ranks<Lm>({.plan = Plan::zero3().resident_budget(1)}, {}, [](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    const at::Tensor weight = model.blocks[0]->as<Block>()->up->weight;
    EXPECT_THROW(weight.data_ptr<float>(), std::exception);
    EXPECT_THROW(weight.const_data_ptr(), std::exception);
    EXPECT_THROW((weight.accessor<float, 2>()), std::exception);
    EXPECT_EQ(weight.sizes(), at::IntArrayRef({17, 13}));
    EXPECT_TRUE(train_step(model, engine).applied);
  });
}

TEST(Outside, OperatorsMayReadAnything) {
  everywhere([](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    const torch::NoGradGuard no_grad;
    std::ostringstream printed;
    printed << model.bias;
    EXPECT_FALSE(printed.str().empty());
    EXPECT_NEAR(seen(model.bias)[3].item<double>(), model.bias[3].item<double>(), 0);
    EXPECT_GT(torch::nn::utils::parameters_to_vector(model.blocks->parameters()).norm().item<double>(), 0);
    EXPECT_TRUE(model.embed->weight.detach().to(at::kDouble).isfinite().all().item<bool>());
  });
}

TEST(Outside, ReplacingAParametersDataIsNoticed) {
  everywhere([](Lm& model, Engine& engine, int) {
    model.norm->bias.set_data(at::zeros({13}));
    expect_state_error([&] { engine.backward(model.loss(0)); }, "norm.bias");
  });
}

TEST(Outside, LoadingIntoTheModuleIsNoticed) {
  on_ranks<Lm>({.plan = Plan::zero3()}, {}, [](Lm& model, Engine& engine, int) {
    std::stringstream file;
    torch::serialize::OutputArchive out;
    Lm().save(out);
    out.save_to(file);
    torch::serialize::InputArchive in;
    in.load_from(file);
    EXPECT_THROW(model.load(in), StateError);
    EXPECT_TRUE(train_step(model, engine).applied);
  });
}

TEST(Outside, ConvertingTheModuleIsNoticed) {
  everywhere([](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    engine.backward(model.loss(engine.micro_batch()));
    model.norm->to(at::kDouble);
    expect_state_error([&] { engine.step(); }, "norm.weight");
  });
}

TEST(Outside, ConvertingTheModuleToWhatItIsChangesNothing) {
  on_ranks<Lm>({.plan = Plan::zero3()}, {}, [](Lm& model, Engine& engine, int) {
    model.to(at::kFloat);
    model.to(at::kCPU);
    EXPECT_TRUE(train_step(model, engine).applied);
  });
}

}  // namespace zero::test::gather_test
