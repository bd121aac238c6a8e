// LibTorch's log is held back and given back.
#include "comm/torch/torch_log.h"

#include <c10/util/Logging.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace zero::torch_log_test {

class TorchLog : public testing::Test {
 protected:
  ~TorchLog() override { FLAGS_caffe2_log_level = before_; }

  static bool heard() {
    testing::internal::CaptureStderr();
    LOG(ERROR) << "of LibTorch";
    return testing::internal::GetCapturedStderr().find("of LibTorch") != std::string::npos;
  }

 private:
  const int before_ = FLAGS_caffe2_log_level;
};

TEST_F(TorchLog, IsHeldBackWhileAnyoneWantsThatAndThenGivenBack) {
  FLAGS_caffe2_log_level = c10::GLOG_INFO;
  EXPECT_TRUE(heard());
  {
    const QuietTorch first(false);
    EXPECT_FALSE(heard());
    { const QuietTorch second(false); }
    EXPECT_FALSE(heard());
  }
  EXPECT_TRUE(heard());
  EXPECT_EQ(FLAGS_caffe2_log_level, c10::GLOG_INFO);
}

TEST_F(TorchLog, KeepsTheLevelThatTheProgramSetsMeanwhile) {
  {
    const QuietTorch quiet(false);
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
  EXPECT_EQ(FLAGS_caffe2_log_level, c10::GLOG_ERROR);
}

TEST_F(TorchLog, IsLeftAloneWhereItIsAskedFor) {
  const QuietTorch loud(true);
  EXPECT_TRUE(heard());
}

TEST(Gist, IsTheFirstSentenceUnlessAllIsAskedFor) {
  const std::runtime_error error("[../socket.cpp:12] It failed. Since then\nframe #0: here");
  EXPECT_EQ(gist(error, false), "It failed");
  EXPECT_EQ(gist(error, true), error.what());
}

}  // namespace zero::torch_log_test
