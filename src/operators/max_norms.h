// Embeddings whose rows have a largest norm. LibTorch renormalises, in place, the rows that a forward looks up. Here a
// parameter may lie in parts, or be read by peers where it is: so a lookup reads a renormalised copy, and the rows that
// any rank has looked up are renormalised where they live before the next update, scope or other look at the table.
//
// Thread-safety: the thread that runs forward and step.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "zero/communicator.h"

namespace zero {

class MaxNorms {
 public:
  struct Table {
    int parameter;  // of the layout
    std::string name;
    std::int64_t rows;
    double max_norm;
    double norm_type;  // p of the norm
  };

  // Of parameters on `where`.
  MaxNorms(const std::vector<Table>& tables, c10::Device where);

  bool empty() const { return tables_.empty(); }
  // The parameter's rows at `indices` are looked up from now on. Throws StateError where it is not one of the tables,
  // or has another norm.
  void note(int parameter, const std::string& name, const at::Tensor& indices, double max_norm, double norm_type);
  // The parameter as lookups see it: `weight` itself, or a copy whose gradient is that of `weight`.
  at::Tensor seen(int parameter, const at::Tensor& weight) const;

  struct Due {
    Table table;
    at::Tensor indices;  // of rows, not empty
  };
  // What any of the ranks looked up, which is forgotten. Collective: `gather` brings all ranks' bytes, in their order.
  using Gather = std::function<void(ConstView mine, View all)>;
  std::vector<Due> settle(int ranks, const Gather& gather);
  // What was looked up on this rank.
  void forget();
  // On a table, or a copy.
  static void renormalise(const Table& table, const at::Tensor& weight, const at::Tensor& indices);

 private:
  struct State {
    Table table;
    at::Tensor looked_up;  // u8, by row
    bool pending = false;
  };
  std::vector<State> tables_;
};

}  // namespace zero
