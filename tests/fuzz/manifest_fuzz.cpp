// Manifests of checkpoints: an input is what is before the checksum, which is made to fit, since nothing behind a wrong
// one is looked at. What is taken is written as it was read.
#include "persist/manifest.h"

#include "fuzz/fuzz.h"
#include "persist/manifest_words.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  zero::fuzz::result_or_error([&] { zero::manifest_of(text, "the input"); });
  zero::fuzz::result_or_error([&] {
    const zero::Manifest manifest = zero::manifest_of(text + zero::checksum_member(text), "the input");
    zero::fuzz::require(zero::manifest_of(zero::to_text(manifest), "what was written") == manifest);
    zero::check(manifest, "the input");
    for (const zero::StoredTensor& stored : manifest.tensors) zero::fuzz::require(stored.tensor.numel() >= 0);
  });
  return 0;
}
