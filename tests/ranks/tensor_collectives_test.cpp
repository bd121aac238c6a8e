// Collectives of a program's own tensors.
#include <torch/torch.h>

#include <limits>

#include "harness.h"
#include "zero/collectives.h"

namespace zero::test::tensor_collectives_test {

// Of this rank, with numbers that are exact in every dtype.
at::Tensor mine(const World& world, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  const std::int64_t count = c10::multiply_integers(shape);
  return ((at::arange(count) % 7 + 1) * (world.rank() + 1)).reshape(shape).to(device_of_rank(), type);
}

// What one process with all ranks' tensors has.
std::vector<at::Tensor> of_all(const World& world, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world.size(); ++rank)
    all.push_back(((at::arange(c10::multiply_integers(shape)) % 7 + 1) * (rank + 1)).reshape(shape).to(type));
  return all;
}

testing::AssertionResult same(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() || !at::equal(a.cpu(), b.cpu()))
    return testing::AssertionFailure() << a << " and " << b;
  return testing::AssertionSuccess();
}

class TensorCollectives : public testing::TestWithParam<int> {
 protected:
  static void on_ranks(const std::function<void(const World&)>& rank) { run_ranks(GetParam(), rank); }
};

TEST_P(TensorCollectives, SumEveryDtype) {
  on_ranks([](const World& world) {
    for (const at::ScalarType type :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte})
      for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {0}, {1}, {5, 3}, {2, 3, 7}}) {
        const at::Tensor sum = all_reduce(mine(world, shape, type), world);
        EXPECT_TRUE(same(sum, at::stack(of_all(world, shape, at::kDouble)).sum(0).to(type)));
        EXPECT_EQ(sum.device(), device_of_rank());
      }
  });
}

TEST_P(TensorCollectives, FindMeansAndExtremes) {
  on_ranks([](const World& world) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const at::Tensor all = at::stack(of_all(world, {5, 3}, type));
      const at::Tensor x = mine(world, {5, 3}, type);
      EXPECT_TRUE(same(all_reduce(x, world, Reduction::mean), all.to(at::kDouble).mean(0).to(at::kFloat).to(type)));
      EXPECT_TRUE(same(all_reduce(x, world, Reduction::max), std::get<0>(all.max(0))));
      EXPECT_TRUE(same(all_reduce(x, world, Reduction::min), std::get<0>(all.min(0))));
    }
    const at::Tensor odd = (mine(world, {9}, at::kLong) % 2).to(at::kBool);
    const at::Tensor odds = (at::stack(of_all(world, {9}, at::kLong)) % 2).to(at::kBool);
    EXPECT_TRUE(same(all_reduce(odd, world, Reduction::max), odds.any(0)));
    EXPECT_TRUE(same(all_reduce(odd, world, Reduction::min), odds.all(0)));
  });
}

TEST_P(TensorCollectives, KeepWhatIsNotANumber) {
  on_ranks([](const World& world) {
    at::Tensor x = mine(world, {4});
    if (world.rank() == world.size() - 1) x[2] = std::numeric_limits<double>::quiet_NaN();
    for (const Reduction how : {Reduction::sum, Reduction::mean, Reduction::max, Reduction::min})
      EXPECT_TRUE(same(all_reduce(x, world, how).isnan().cpu(), at::arange(4) == 2));
  });
}

TEST_P(TensorCollectives, GatherRowsOfAnyNumber) {
  on_ranks([](const World& world) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kChar}) {
      std::vector<at::Tensor> all = of_all(world, {4, 3}, type);
      EXPECT_TRUE(same(all_gather(mine(world, {4, 3}, type), world), at::cat(all)));
      for (std::size_t rank = 0; rank < all.size(); ++rank)
        all[rank] = all[rank].narrow(0, 0, static_cast<std::int64_t>(rank) * 3 % 4);
      const at::Tensor part = mine(world, {4, 3}, type).narrow(0, 0, world.rank() * 3 % 4);
      EXPECT_TRUE(same(all_gather(part, world), at::cat(all)));
    }
    EXPECT_TRUE(same(all_gather(mine(world, {}), world), at::stack(of_all(world, {}))));
    EXPECT_TRUE(same(all_gather(mine(world, {0, 3}), world), at::cat(of_all(world, {0, 3}))));
    EXPECT_TRUE(same(all_gather(mine(world, {2, 0}), world), at::cat(of_all(world, {2, 0}))));
  });
}

TEST_P(TensorCollectives, Broadcast) {
  on_ranks([](const World& world) {
    const int root = world.size() - 1;
    const at::Tensor expected = of_all(world, {2, 3}, at::kHalf).back();
    const at::Tensor x = mine(world, {2, 3}, at::kHalf);
    const at::Tensor came = broadcast(x, world, root);
    EXPECT_TRUE(same(came, expected));
    EXPECT_NE(came.data_ptr(), x.data_ptr());
    EXPECT_TRUE(same(broadcast(world.rank() == root ? x : at::Tensor(), world, root), expected));
  });
}

// As it lies, and as autograd sees it.
TEST_P(TensorCollectives, TakeViewsAndLeaveTheirArgumentAlone) {
  on_ranks([](const World& world) {
    const at::Tensor x = mine(world, {3, 4}).t().requires_grad_();
    const at::Tensor before = x.detach().clone();
    for (const at::Tensor& result : {all_reduce(x, world), all_gather(x, world), broadcast(x, world)})
      EXPECT_FALSE(result.requires_grad());
    EXPECT_TRUE(same(all_reduce(x, world), at::stack(of_all(world, {3, 4})).sum(0).t()));
    EXPECT_TRUE(same(x.detach(), before));
  });
}

INSTANTIATE_TEST_SUITE_P(All, TensorCollectives, testing::Values(1, 2, 3, 4), testing::PrintToStringParamName());

// (a + b) + (c + d), and bf16 rounded once.
TEST(TensorSums, AreTheTreesOnEveryRank) {
  run_ranks(4, [](const World& world) {
    const std::vector<double> values = {0x1p53, 1, 1, -0x1p53};
    const double value = values[static_cast<std::size_t>(world.rank())];
    EXPECT_EQ(all_reduce(at::full({3}, value, at::kDouble), world)[2].item<double>(), 1);
    const at::Tensor narrow = at::full({}, world.rank() == 0 ? 256 : 1, at::kBFloat16);
    EXPECT_EQ(all_reduce(narrow, world).item<double>(), 260);  // 256, were it rounded in between
    EXPECT_EQ(all_reduce(narrow * 4, world, Reduction::mean).item<double>(), 260);
  });
}

// Every rank has the same error, which lists what each has, and goes on.
void expect_one_error(int ranks, const std::function<void(const World&)>& call, const std::vector<std::string>& words) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const World& world) {
    errors[static_cast<std::size_t>(world.rank())] = thrown_by([&] { call(world); });
    EXPECT_EQ(sum(1, world), ranks);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors.front());
    EXPECT_TRUE(says(error, words));
  }
}

TEST(TensorCollectivesThatDoNotFit, AreOneErrorOnEveryRank) {
  const auto odd_one = [](const World& world, const at::Tensor& odd, const at::Tensor& other) {
    return world.rank() == 1 ? odd : other;
  };
  expect_one_error(3,
                   [&](const World& w) {
                     static_cast<void>(all_reduce(odd_one(w, at::ones({2, 3}), at::ones({3, 2})), w));
                   },
                   {"rank 0: all_reduce(sum) of Float [3, 2]", "rank 1: all_reduce(sum) of Float [2, 3]", "rank 2"});
  expect_one_error(
      2, [&](const World& w) { static_cast<void>(all_reduce(odd_one(w, at::ones({2}, at::kHalf), at::ones({2})), w)); },
      {"Half [2]", "Float [2]"});
  expect_one_error(2,
                   [&](const World& w) {
                     static_cast<void>(all_reduce(at::ones({2}), w, w.rank() == 1 ? Reduction::max : Reduction::mean));
                   },
                   {"all_reduce(mean)", "all_reduce(max)"});
  expect_one_error(2,
                   [&](const World& w) {
                     static_cast<void>(all_gather(odd_one(w, at::ones({2, 3}), at::ones({2, 4})), w));
                   },
                   {"all_gather of Float [2, 4]", "all_gather of Float [2, 3]"});
  expect_one_error(2, [&](const World& w) { static_cast<void>(broadcast(at::ones({2}), w, w.rank())); },
                   {"broadcast(from rank 0)", "broadcast(from rank 1)"});
  expect_one_error(2, [&](const World& w) { static_cast<void>(broadcast(at::ones({2}), w, 2)); }, {"from rank 2"});
  expect_one_error(2, [&](const World& w) { static_cast<void>(broadcast(odd_one(w, at::ones({2}), at::Tensor()), w)); },
                   {"rank 0: broadcast(from rank 0) of an undefined tensor"});
  expect_one_error(2,
                   [&](const World& w) {
                     if (w.rank() == 0) return static_cast<void>(all_reduce(at::ones({2}), w));
                     static_cast<void>(all_gather(at::ones({2}), w));
                   },
                   {"rank 0: all_reduce(sum)", "rank 1: all_gather"});
}

TEST(TensorCollectivesThatDoNotFit, AreTensorsThatHaveNoSuchResult) {
  const auto refuses = [](const at::Tensor& tensor, Reduction how, const std::vector<std::string>& words) {
    expect_one_error(
        2, [&](const World& w) { static_cast<void>(all_reduce(tensor, w, how)); }, words);
  };
  refuses(at::ones({2}, at::kLong), Reduction::mean, {"Long [2], which it does not take"});
  refuses(at::ones({2}, at::kBool), Reduction::sum, {"Bool"});
  refuses(at::ones({2}, at::kComplexFloat), Reduction::sum, {"ComplexFloat"});
  refuses(at::ones({2, 2}).to_sparse(), Reduction::sum, {"which it does not take"});
  refuses({}, Reduction::sum, {"an undefined tensor"});
  refuses(at::full({2}, 100, at::kChar), Reduction::sum, {"Char", "int64"});
}

}  // namespace zero::test::tensor_collectives_test
