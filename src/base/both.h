// What the host and a device compute by the same function. No torch.
#pragma once

#ifdef __CUDACC__
#define ZERO_BOTH __host__ __device__
#else
#define ZERO_BOTH
#endif
