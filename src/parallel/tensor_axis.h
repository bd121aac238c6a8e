// The ranks that have a part each of the tensors of a module, and what they tell each other of these: tensor
// parallelism (Megatron-LM, section 3), below autograd. Along it all ranks run the same operators, in the same order.
//
// Thread-safety: the thread that computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "zero/communicator.h"
#include "zero/tensor_rule.h"

namespace zero {

class Device;
class TrafficMeter;

// How a TensorAxis computes.
struct TensorAxisOptions {
  // In so many tiles a cut dimension is computed with, whatever the number of ranks, which divides it; 1: in none.
  int grain = 1;
  // Between a row and a column product tensors are cut along the sequence (Korthikanti et al. 2022, section 4.2.2).
  bool sequence = false;
};

class TensorAxis {
 public:
  // `group` is the axis' own, for the host's memory, of the ranks of `mesh`, one of a mesh's; what it moves for
  // operators is counted by the meter, where there is one. `device`, which stays, is where its tensors may be, too:
  // what the thread queues there next comes behind what is moved. Collective where there is one.
  TensorAxis(const Communicator& group, const Communicator& mesh, const std::shared_ptr<TrafficMeter>& meter = {},
             TensorAxisOptions options = {}, Device* device = nullptr);
  TensorAxis(const TensorAxis&) = delete;
  TensorAxis& operator=(const TensorAxis&) = delete;

  int rank() const { return words_.rank(); }
  int size() const { return words_.size(); }

  // Of this rank. Where there are tiles, sums over what is cut are those of the tiles, along one tree, and so have one
  // order for every number of ranks: none is put off as an addend then.
  int tiles() const { return std::max(1, options_.grain / size()); }
  bool in_tiles() const { return options_.grain > 1; }
  bool along_sequence() const { return options_.sequence; }
  // The sum of the tiles of all ranks, along the library's tree; 16-bit ones are added in fp32 and rounded once.
  at::Tensor sum_of_tiles(std::vector<at::Tensor> mine) const;

  // Whether it is of the same mesh.
  bool same_ranks(const TensorAxis& other) const { return mesh_ == other.mesh_; }

  // The ranks' parts, in rank order, joined. Wire: (T - 1) parts a rank.
  at::Tensor gather(const at::Tensor& part, const TensorCut& cut) const;
  // The sum of the ranks' tensors, the same bits on all of them: see Communicator::all_reduce().
  at::Tensor sum(const at::Tensor& addend) const;
  void sum_(const at::Tensor& addend) const;  // in place, of a contiguous one
  // This rank's part of that sum, along a dimension that the ranks divide. Wire: (T - 1) parts a rank.
  at::Tensor sum_own(const at::Tensor& addend, std::int64_t dim) const;
  // The largest of the ranks' values, element by element.
  at::Tensor largest(const at::Tensor& values) const;
  // This rank's part of what all of them have, a view unless it is of several blocks: of a size that the ranks divide.
  at::Tensor own(const at::Tensor& whole, const TensorCut& cut) const;
  // This rank's tiles of its part, each one's rows of every block, or, where these do not divide it, the part alone;
  // and the part that they are.
  std::vector<at::Tensor> tiles_of(const at::Tensor& part, const TensorCut& cut) const;
  static at::Tensor joined(const std::vector<at::Tensor>& tiles, const TensorCut& cut);
  bool divides(std::int64_t size) const { return size > 0 && size % this->size() == 0; }
  // One rank's values into those of the others.
  void broadcast(const at::Tensor& values, int from = 0) const;

  // Every rank's words, as many on each, in rank order.
  std::vector<std::int64_t> gather_words(const std::vector<std::int64_t>& words) const;

  // Writes to the memory of parts are counted while there are copies that are taken for views of any.
  void add_copy(int count);
  void wrote(const at::Tensor& part);
  std::int64_t writes_of(const at::Tensor& part) const;

  // How often an operator ran on parts, and how often whole, for want of a rule.
  struct Count {
    std::int64_t in_parts = 0, whole = 0;
  };
  void count(const std::string& operator_name, bool in_parts);
  const std::map<std::string, Count>& counts() const { return counts_; }
  std::int64_t operators() const { return operators_; }  // all that were counted

 private:
  // The ranks, for memory of where the values are.
  const Communicator& group_for(const at::Tensor& values) const;
  void finish(const at::Tensor& values, Pending operation) const;

  Communicator words_, on_host_, on_device_;  // the same; the first is not metered
  Device* device_;
  std::shared_ptr<CommunicatorImpl> mesh_;
  TensorAxisOptions options_;
  std::map<std::string, Count> counts_;
  std::int64_t operators_ = 0;
  int copies_ = 0;
  std::unordered_map<const void*, std::int64_t> writes_;  // by storage
};

}  // namespace zero
