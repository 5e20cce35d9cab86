// Conversions that code generation calls where the processor has none. Knows IEEE 754, nothing of Metal.
#include <stdint.h>

// Round to nearest, ties to even.
extern "C" __attribute__((weak)) __bf16 __truncsfbf2(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  uint16_t result;
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    result = (uint16_t)(bits >> 16 | 0x40);  // a NaN stays one
  else
    result = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  __bf16 out;
  __builtin_memcpy(&out, &result, sizeof out);
  return out;
}
