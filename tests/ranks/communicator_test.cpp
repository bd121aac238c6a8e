#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/torch/c10d.h"
#include "comm_suite.h"
#include "gloo_group.h"

namespace zero::test::communicator_test {

std::string title(const testing::TestParamInfo<CommunicatorSuite::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorSuite,
                         testing::Combine(testing::Values(kGloo, kGlooOnPairs), testing::Values(1, 2, 3, 4, 5)), title);

TEST(Gloo, RefusesMemoryOfADevice) {
  const Communicator alone(gloo_group(1, kNoHang)(0));
  float value = 0;
  EXPECT_THROW(alone.all_reduce({&value, 1, Dtype::f32, 0}), ConfigError);
}

TEST(Gloo, RanksThatDoNotMeetFailInTime) {
  EXPECT_THROW(gloo_group(2, Timeout(200))(0), CommError);
}

}  // namespace zero::test::communicator_test
