// `--tensor`: a model of which several ranks have a part each, trained, compared and planned.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "procs/zero_program.h"

namespace tensor_test {

using nlohmann::json;
using procs::contains;
using procs::Folder;
using procs::joined;
using procs::Result;
using procs::run;
using procs::Words;
using procs::zero;

json report_of(const Folder& folder, const Words& words) {
  const Result result = run(zero(joined(words, folder.small({"--steps", "4", "--json", folder.path("out")}))));
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  return folder.document("out");
}

void expect_close(const json& run, const json& without, double most) {
  ASSERT_EQ(run.at("losses").size(), without.at("losses").size());
  for (std::size_t i = 0; i < run.at("losses").size(); ++i)
    EXPECT_NEAR(run.at("losses").at(i).get<double>(), without.at("losses").at(i).get<double>(), most);
}

// Losses are those of as many data ranks without the axis; states, and what is exchanged, what was predicted.
TEST(Tensor, TrainsAsWithoutTheAxis) {
  const Folder folder;
  for (const char* precision : {"fp32", "bf16"})
    for (const char* data : {"1", "2"}) {
      const char* const pieces = *data == '1' ? "1" : "3";
      const bool narrow = std::string_view(precision) == "bf16";
      const Words common{"compare",      "--plans", "ddp,zero3",     "--precision", precision,
                         "--eval-every", "2",       "--loss-pieces", pieces};
      const json without = report_of(folder, joined(common, {"--ranks", data}));
      const json cut =
          report_of(folder, joined(common, {"--ranks", std::to_string(2 * std::atoi(data)), "--tensor", "2"}));
      EXPECT_EQ(cut.at("tensor"), 2);
      EXPECT_EQ(cut.at("runs").at(0).at("losses"), cut.at("runs").at(1).at("losses"));
      for (const json& each : cut.at("runs")) {
        expect_close(each, without.at("runs").at(0), narrow ? .02 : 1e-4);
        EXPECT_NEAR(each.at("evaluations").at(1).at("loss").get<double>(),
                    without.at("runs").at(0).at("evaluations").at(1).at("loss").get<double>(), narrow ? .02 : 1e-4);
        for (const json& bytes : each.at("state_bytes")) EXPECT_EQ(bytes.at("predicted"), bytes.at("measured"));
        const json& wire = each.at("tensor_wire_bytes");
        EXPECT_GT(wire.at("predicted").get<std::int64_t>(), 0);
        EXPECT_EQ(wire.at("predicted"), wire.at("measured"));
        const json& peak = each.at("peak");
        EXPECT_NEAR(peak.at("predicted").get<double>() / peak.at("measured").get<double>(), 1, .1);
      }
    }
}

// A checkpoint of four parts goes on in two, and without, as four that never stopped.
TEST(Tensor, ResumesOnAnotherAxis) {
  const Folder folder;
  const Words cut{"train", "--plan", "zero3", "--ranks", "4", "--tensor", "4"};
  const Result whole = run(zero(joined(
      cut, folder.small({"--steps", "6", "--schedule", "constant", "--warmup", "0", "--json", folder.path("whole")}))));
  EXPECT_EQ(whole.code, 0) << whole.err;
  const json expected = folder.document("whole").at("runs").at(0).at("losses");
  for (const Words& other : {Words{"--ranks", "2", "--tensor", "2"}, Words{"--ranks", "1"}}) {
    const Folder saved;
    const Words common{"--save-to",  saved.path("saved"), "--save-every", "4",
                       "--schedule", "constant",          "--warmup",     "0"};
    for (const auto& [words, steps] :
         {std::pair(cut, "4"), std::pair(joined({"train", "--plan", "zero2"}, other), "6")}) {
      const Result result = run(zero(joined(
          joined(words, common), folder.small({"--steps", steps, "--resume", "auto", "--json", saved.path("out")}))));
      EXPECT_EQ(result.code, 0) << result.err << result.out;
    }
    const json losses = saved.document("out").at("runs").at(0).at("losses");
    ASSERT_EQ(losses.size(), 6U);
    for (std::size_t step = 0; step < 6; ++step)
      EXPECT_NEAR(losses.at(step).get<double>(), expected.at(step).get<double>(), 1e-4) << step;
  }
}

// Of what is cut each rank plans with its part, and steps are longer by what goes along the axis.
TEST(Tensor, IsPlanned) {
  const Folder folder;
  const auto planned = [&](const Words& words) {
    const Result result = run(zero(joined({"plan", "--json", "-", "--device-memory", "80GB", "--model", "7b"}, words)),
                              {{"XDG_CACHE_HOME", folder.path("cache")}});
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  };
  const json whole = planned({"--ranks", "1", "--plans", "ddp"}),
             half = planned({"--ranks", "2", "--plans", "ddp", "--tensor", "2"});
  EXPECT_EQ(half.at("parameters"), whole.at("parameters"));
  EXPECT_EQ(half.at("tensor"), 2);
  const auto state = [](const json& answer) { return answer.at("plans").at(0).at("state_gb").get<double>(); };
  EXPECT_NEAR(state(half) / state(whole), .5, .001);  // norms are whole
  const auto activations = [](const json& answer) {
    return answer.at("plans").at(0).at("activation_bytes").get<double>();
  };
  EXPECT_LT(activations(half), .8 * activations(whole));
  EXPECT_GT(activations(half), .5 * activations(whole));
  const auto seconds = [](const json& answer) { return answer.at("plans").at(0).at("step_seconds").get<double>(); };
  EXPECT_GT(seconds(half), .5 * seconds(whole));
  EXPECT_LT(seconds(half), seconds(whole));
}

}  // namespace tensor_test
