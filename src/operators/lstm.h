// LSTMs in 16 bits. oneDNN has none for processors without AVX-512, and under autocast LibTorch asks it all the same;
// its own, in 16 bits, take some twenty times as long. There an LSTM is computed in fp32, and its results are rounded.
#pragma once

namespace c10 {
class OperatorHandle;
}

namespace zero {

struct Cast;

bool is_lstm(const c10::OperatorHandle& op);

// Whether there is an LSTM in this dtype, bf16 or fp16: on the CPU, whether oneDNN has one for this processor.
// Thread-safe.
bool has_lstm(const Cast& cast);

}  // namespace zero
