// The same table as collectives.cpp by MPI, which has no bf16.
//
//   mpirun -n 4 mpi_collectives
#define OMPI_SKIP_MPICXX 1  // the C interface only: Open MPI's C++ one does not compile without warnings
#include <mpi.h>

#include "bench/collectives/table.h"

namespace {

using bench::Buffers;
using bench::Case;
using bench::Operation;
using bench::Work;

class Mpi : public bench::Group {
 public:
  Mpi(int* argc, char*** argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~Mpi() override { MPI_Finalize(); }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  std::vector<double> slowest(std::vector<double> seconds) override {
    MPI_Allreduce(MPI_IN_PLACE, seconds.data(), static_cast<int>(seconds.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
  }

  std::vector<Case> cases() const override {
    return bench::cases_of({Operation::all_gather, Operation::reduce_scatter, Operation::all_reduce},
                           {zero::Dtype::f32});
  }

  Work work(const Case& c, const Buffers& buffers) override {
    const void* input = buffers.input.get();
    void* output = buffers.output.get();
    const int count = static_cast<int>(c.count());
    const int slice = count / size_;
    switch (c.operation) {
      case Operation::reduce_scatter:
        return [=] { MPI_Reduce_scatter_block(input, output, slice, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
      case Operation::all_reduce:
        return [=] { MPI_Allreduce(MPI_IN_PLACE, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
      default: return [=] { MPI_Allgather(input, slice, MPI_FLOAT, output, slice, MPI_FLOAT, MPI_COMM_WORLD); };
    }
  }

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded([&] {
    Mpi group(&argc, &argv);
    bench::fill_table(group);
  });
}
