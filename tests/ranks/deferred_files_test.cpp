// Models that are deferred take what files have of them.
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <numeric>

#include "larger.h"
#include "weights/load_weights.h"

namespace zero::test::deferred_files_test {

class DeferredFiles : public testing::Test {
 protected:
  DeferredFiles() { ::mkdtemp(folder_.data()); }
  ~DeferredFiles() override { std::filesystem::remove_all(folder_); }
  std::string folder_ = "/tmp/zero-deferred-XXXXXX";
};

// What a file gives is read when it is wanted; its initialisers never run.
TEST_F(DeferredFiles, GiveTheirWeights) {
  torch::manual_seed(8);
  const Larger other;
  save_safetensors(other, folder_, {.dtype = Dtype::bf16});
  const auto loaded = [&](bool deferred) {
    return Course<Larger>{.make = [&, deferred] {
      const std::shared_ptr<Larger> model = larger(deferred).make();
      load_safetensors(*model, folder_);
      EXPECT_EQ(waits(model->embed->weight), deferred);
      return model;
    }};
  };
  for (const Plan& plan : {Plan::ddp(), Plan::zero3().bf16()}) {
    const Job job{plan, 2};
    EXPECT_EQ(difference(train(job, loaded(false)), train(job, loaded(true))), "");
  }
}

// Elements that were read of each tensor.
struct Reads {
  std::map<std::string, std::int64_t> elements;
  int fails_at = -1;  // counted down by reads; the one that finds 0 fails
};

class CountedWeights final : public Weights {
 public:
  CountedWeights(const std::string& folder, std::shared_ptr<Reads> reads)
      : weights_(open_weights(folder)), reads_(std::move(reads)) {}
  const std::vector<WeightTensor>& tensors() const override { return weights_->tensors(); }
  void read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) override {
    if (reads_->fails_at >= 0 && reads_->fails_at-- == 0) throw CheckpointError("the file is gone");
    reads_->elements[tensors()[tensor].name] += end - begin;
    weights_->read(tensor, begin, end, values);
  }

 private:
  std::unique_ptr<Weights> weights_;
  std::shared_ptr<Reads> reads_;
};

struct Counted : Larger {
  std::shared_ptr<Reads> reads = std::make_shared<Reads>();  // since it was loaded
};

std::shared_ptr<Counted> counted(const std::string& folder) {
  const std::lock_guard lock(drawing);
  torch::manual_seed(3);
  auto model = zero::deferred([] { return std::make_shared<Counted>(); });
  load_weights(*model, std::make_shared<CountedWeights>(folder, model->reads), folder);
  model->reads->elements.clear();
  return model;
}

const std::vector<std::string> kLarge{"embed.weight", "layers.0.weight", "layers.1.weight", "layers.2.weight"};

// What ranks have after two steps of models as they are made, and what was read by rank and tensor.
struct Trained {
  std::vector<std::map<std::string, at::Tensor>> values;
  std::vector<Reads> reads;
};
Trained trained(const Job& job, const std::function<std::shared_ptr<Counted>()>& make) {
  const auto ranks = static_cast<std::size_t>(job.ranks);
  Trained result{std::vector<std::map<std::string, at::Tensor>>(ranks), std::vector<Reads>(ranks)};
  run_ranks(job.ranks, [&](const World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const std::shared_ptr<Counted> model = make();
    Engine engine(*model, mesh_of(job, world), job.plan, job.optimizer);
    result.reads[rank] = *model->reads;
    for (int step = 0; step < 2; ++step) train_step(*model, engine);
    engine.release();
    result.values[rank] = values_of(*model);
  });
  return result;
}

// Each element by one rank of a group that shards them; what is replicated by rank 0.
TEST_F(DeferredFiles, AreReadInTheRanksParts) {
  struct Case {
    Plan plan;
    int ranks, shard, groups;
  };
  torch::manual_seed(8);
  const Larger other;
  save_safetensors(other, folder_ + "/f32");
  save_safetensors(other, folder_ + "/bf16", {.dtype = Dtype::bf16});
  for (const std::string& folder : {folder_ + "/f32", folder_ + "/bf16"})
    for (const auto& [plan, ranks, shard, groups] :
         {Case{Plan::zero3(), 2, 0, 1}, Case{Plan::zero3().bf16(), 3, 0, 1}, Case{Plan::hybrid().bf16(), 4, 2, 2},
          Case{Plan::hybrid_zero2(), 4, 2, 2}, Case{Plan::zero2(), 2, 0, 0}}) {
      const Job job{.plan = plan, .ranks = ranks, .shard = shard};
      SCOPED_TRACE(describe(job));
      const Trained in_parts = trained(job, [&] { return counted(folder); });
      for (const std::string& name : kLarge) {
        std::vector<std::int64_t> read;
        for (const Reads& reads : in_parts.reads) {
          const auto found = reads.elements.find(name);
          read.push_back(found == reads.elements.end() ? 0 : found->second);
        }
        const std::int64_t numel = name == "embed.weight" ? 61 * 40 : 40 * 40;
        EXPECT_EQ(std::accumulate(read.begin(), read.end(), std::int64_t{0}), numel * std::max(groups, 1)) << name;
        EXPECT_EQ(read[0] == numel, groups == 0) << name;
      }
      const Trained whole = trained(job, [&] {
        const std::lock_guard lock(drawing);
        torch::manual_seed(3);
        auto model = std::make_shared<Counted>();
        load_safetensors(*model, folder);
        return model;
      });
      for (std::size_t rank = 0; rank < whole.values.size(); ++rank)
        for (const auto& [name, values] : whole.values[rank])
          EXPECT_TRUE(at::equal(values, in_parts.values[rank].at(name))) << name;
    }
}

TEST_F(DeferredFiles, OfAnotherModelOnAnotherRankAreRankZeros) {
  torch::manual_seed(8);
  const Larger first, second;
  {
    const at::NoGradGuard no_grad;  // rows that no token came to
    second.embed->weight.slice(0, 0, 30).copy_(first.embed->weight.slice(0, 0, 30));
  }
  save_safetensors(first, folder_ + "/0");
  save_safetensors(second, folder_ + "/1");
  run_ranks(2, [&](const World& world) {
    const auto model = counted(folder_ + "/" + std::to_string(world.rank()));
    Engine engine(*model, world, Plan::zero3(), AdamW{});
    EXPECT_EQ(model->reads->elements.empty(), world.rank() == 1);
    engine.release();
    EXPECT_TRUE(at::equal(model->embed->weight, first.embed->weight));
  });
}

TEST_F(DeferredFiles, ThatOneRankCannotReadEndAll) {
  const Larger other;
  save_safetensors(other, folder_);
  std::vector<std::string> thrown(2);
  run_ranks(2, [&](const World& world) {
    const auto model = counted(folder_);
    if (world.rank() == 1) model->reads->fails_at = 3;  // the last
    thrown[static_cast<std::size_t>(world.rank())] =
        thrown_by([&] { Engine engine(*model, world, Plan::zero3(), AdamW{}); });
    EXPECT_TRUE(waits(model->embed->weight));
  });
  EXPECT_TRUE(says(thrown[0], {"rank 0: all_gather"})) << thrown[0];  // why, is the transport's to say
  EXPECT_TRUE(says(thrown[1], {"the file is gone"})) << thrown[1];
}

}  // namespace zero::test::deferred_files_test
