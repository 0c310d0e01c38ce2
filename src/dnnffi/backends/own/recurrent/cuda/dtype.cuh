#pragma once
/* The type of the factors, and how words divide arrays. DTYPE is that of arrays: float16, bfloat16, or float32
   with products in TF32, of which a STRICT one takes three. FACTORS is the dtype of what is multiplied: of a
   NARROW kernel float16, where arrays are float32 (narrow.cu). */

#include "element.cuh"

namespace dnnffi {

constexpr Dtype FACTORS = Config::FACTORS;
constexpr bool STRICT = Config::STRICT;

static_assert(FACTORS == FLOAT16 || FACTORS == BFLOAT16 || FACTORS == FLOAT32,
              "see README.md, Adding a dtype");

using Factor = Storage<FACTORS>::Type;

constexpr bool NARROW = sizeof(Factor) < sizeof(Element);
/* Factor of the states that a NARROW kernel multiplies, which are at most 1: the smallest state that float16
   then holds with all of its bits is 2^-29. */
constexpr float STATE_SCALE = 32768;

/* A word is 16 bytes: what one access of a thread moves at once. */
constexpr int WORD = 16 / (int)sizeof(Element);  /* elements of an array */
constexpr int K_WORD = 16 / (int)sizeof(Factor); /* factors, which follow each other in k */

} // namespace dnnffi
