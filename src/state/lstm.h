// LSTMs in 16 bits. oneDNN has none for processors without AVX-512, and under autocast LibTorch asks it all the same;
// its own, in 16 bits, take some twenty times as long. There an LSTM is computed in fp32, and its results are rounded.
#pragma once

#include <c10/core/ScalarType.h>

namespace c10 {
class OperatorHandle;
}

namespace zero {

bool is_lstm(const c10::OperatorHandle& op);

// Whether oneDNN has an LSTM in this dtype, bf16 or fp16, for this processor. Thread-safe.
bool has_lstm(at::ScalarType dtype);

}  // namespace zero
