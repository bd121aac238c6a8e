// A tensor axis beside everything else that a training can be set to: settings that promise the same bits without one
// do so along it.
#include <torch/torch.h>

#include <algorithm>

#include "base/codec.h"
#include "fused_gpt.h"
#include "gpt.h"
#include "partition/full_tensor_owners.h"
#include "partition/moments.h"
#include "settings.h"

namespace zero::test::tensor_settings_test {

// Why an engine of it cannot be cut; empty where it can.
std::vector<std::string> faults_of(const Setting& setting) {
  std::vector<std::string> faults;
  for (const State state : {State::parameter, State::gradient})
    if (has_codec(setting.plan()[state].wire))
      faults.push_back("the wire " + std::string(name(setting.plan()[state].wire)));
  if (setting.precision == Precision::fp8) faults.emplace_back("Precision::fp8");
  const Optimizer& optimizer = update_rules()[setting.rule];
  if (moment_format(optimizer) == MomentFormat::block8) faults.emplace_back("has moments in blocks of the whole");
  if (full_tensor_work(optimizer)) faults.emplace_back("takes whole tensors");
  return faults;
}

// Every other one of a model that is cut in blocks.
Outcome trained(const Setting& setting, bool in_blocks = false) {
  Job job = cut_job(setting.job(), 2);
  job.ranks_per_host *= 2;
  job.steps = 4;
  if (!in_blocks) return train(job, gpt_with_dropout());
  job.options.tensor = kFused;
  return train(job, fused_with_dropout());
}

class SettingsOnATensorAxis : public testing::TestWithParam<Setting> {};

// The same without what cannot be cut.
Setting without_faults(Setting setting) {
  if (has_codec(setting.gather_in)) setting.gather_in = Wire::native;
  if (has_codec(setting.reduce_in)) setting.reduce_in = Wire::native, setting.feeds_back = false;
  if (setting.precision == Precision::fp8) setting.precision = Precision::bf16;
  const auto& rules = update_rules();
  const auto can_be = [](const Optimizer& rule) {
    return moment_format(rule) != MomentFormat::block8 && !full_tensor_work(rule);
  };
  while (!can_be(rules[setting.rule])) setting.rule = (setting.rule + 1) % rules.size();
  return setting;
}

TEST_P(SettingsOnATensorAxis, KeepTheirBits) {
  const Setting setting = without_faults(GetParam());
  ASSERT_EQ(faults_of(setting), std::vector<std::string>());
  ASSERT_TRUE(setting.valid()) << setting.title();
  const bool in_blocks = std::hash<std::string>()(setting.title()) % 2 == 0;
  const Outcome run = trained(setting, in_blocks);
  EXPECT_EQ(run.losses.size(), 4U);
  EXPECT_EQ(difference(trained(setting.reference(), in_blocks), run), "") << setting.title();
}

TEST_P(SettingsOnATensorAxis, AreRefusedByName) {
  const std::vector<std::string> faults = faults_of(GetParam());
  if (faults.empty()) return static_cast<void>(trained(GetParam()));
  const std::string error = thrown_by([&] { trained(GetParam()); });
  for (const std::string& fault : faults) EXPECT_NE(error.find(fault), error.npos) << error;
}

INSTANTIATE_TEST_SUITE_P(All, SettingsOnATensorAxis, testing::ValuesIn(settings_of_each_kind()),
                         [](const auto& row) { return row.param.title(); });

}  // namespace zero::test::tensor_settings_test
