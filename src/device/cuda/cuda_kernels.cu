#include "device/cuda/cuda_kernels.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "device/grid_kernels.h"

namespace zero {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 4096;  // of threads; each goes on to what is a grid further
static_assert(kThreads == kStateBlock);

template <class Body>
__global__ void run_elements(std::int64_t count, Body body) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) body(i);
}

template <class Body>
__global__ void run_blocks(std::int64_t blocks, Body body) {
  __shared__ std::int32_t largest[kMaxMoments];
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    __syncthreads();
    if (thread < Body::kMoments) largest[thread] = 0;
    __syncthreads();
    typename Body::State state;
    const bool mine = body.load(block, thread, state);
    if (mine)
      for (int k = 0; k < Body::kMoments; ++k) atomicMax(&largest[k], state.magnitude(k));
    __syncthreads();
    if (mine) body.store(block, thread, state, largest);
  }
}

__device__ void add_to(std::int64_t* at, std::int64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}

// In the block's own memory first, so that the blocks do not wait for each other.
template <class Body>
__global__ void run_sums(std::int64_t count, Body body, int n, std::int64_t* out) {
  extern __shared__ std::int64_t sums[];
  for (int k = static_cast<int>(threadIdx.x); k < n; k += kThreads) sums[k] = 0;
  __syncthreads();
  const auto add = [](int k, std::int64_t value) { add_to(sums + k, value); };
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) body(i, add);
  __syncthreads();
  for (int k = static_cast<int>(threadIdx.x); k < n; k += kThreads)
    if (sums[k] != 0) add_to(out + k, sums[k]);
}

// In the block's own memory first, as sums.
template <class Body>
__global__ void run_most(std::int64_t count, Body body, std::int32_t* out, std::int32_t* also) {
  __shared__ std::int32_t largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  std::int32_t mine = 0;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride)
    mine = std::max(mine, body(i));
  atomicMax(&largest, mine);
  __syncthreads();
  if (threadIdx.x > 0) return;
  atomicMax(out, largest);
  if (also != nullptr) atomicMax(also, largest);
}

struct Launch {
  cudaStream_t stream;

  static unsigned blocks_of(std::int64_t wanted) {
    return static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, kMostBlocks));
  }
  template <class Body>
  void elements(std::int64_t count, const Body& body) const {
    if (count > 0) run_elements<<<blocks_of((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(count, body);
  }
  template <class Body>
  void blocks(std::int64_t count, const Body& body) const {
    if (count > 0) run_blocks<<<blocks_of(count), kThreads, 0, stream>>>(count, body);
  }
  template <class Body>
  void sums(std::int64_t count, const Body& body, int n, std::int64_t* out) const {
    const auto bytes = static_cast<std::size_t>(n) * sizeof(std::int64_t);
    if (count > 0)
      run_sums<<<blocks_of((count + kThreads - 1) / kThreads), kThreads, bytes, stream>>>(count, body, n, out);
  }
  template <class Body>
  void most(std::int64_t count, const Body& body, std::int32_t* out, std::int32_t* also) const {
    if (count > 0)
      run_most<<<blocks_of((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(count, body, out, also);
  }
};

}  // namespace

int cuda_run(void* stream, const OwnKernel& kernel) {
  grid::Kernels(Launch{static_cast<cudaStream_t>(stream)}).run(kernel);
  return cudaGetLastError();
}

bool cuda_multiplies_float8(int device) {
  int major = 0, minor = 0;
  const bool known = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
  return known && 10 * major + minor >= 89;
}

}  // namespace zero
