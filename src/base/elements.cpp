#include "base/elements.h"

#include <cstring>
#include <type_traits>

#include "base/half.h"

namespace zero {
namespace {

template <class Use>
void with_element(Dtype dtype, const Use& use) {
  switch (dtype) {
    case Dtype::f64: return use(double{});
    case Dtype::bf16: return use(Bf16{});
    case Dtype::f16: return use(Fp16{});
    default: return use(float{});
  }
}

template <class To, class From>
To converted_to(From value) {
  To result{};
  if constexpr (std::is_arithmetic_v<To>)
    result = static_cast<To>(widen(value));
  else
    narrow(static_cast<float>(widen(value)), result);
  return result;
}

template <class From, class To>
void convert(const char* from, char* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i, from += sizeof(From), to += sizeof(To)) {
    From value;
    std::memcpy(&value, from, sizeof value);
    const To result = converted_to<To>(value);
    std::memcpy(to, &result, sizeof result);
  }
}

}  // namespace

bool is_floating(Dtype dtype) {
  return dtype == Dtype::f32 || dtype == Dtype::f64 || dtype == Dtype::bf16 || dtype == Dtype::f16;
}

void convert_elements(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t count) {
  with_element(from_dtype, [&]<class From>(From) {
    with_element(to_dtype, [&]<class To>(To) {
      convert<From, To>(static_cast<const char*>(from), static_cast<char*>(to), count);
    });
  });
}

}  // namespace zero
