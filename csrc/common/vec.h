// at::vec, specialised for the instruction set this translation unit is compiled for.
// ATen selects the specialisation with CPU_CAPABILITY_* macros that its own build passes on the command line; here they
// follow from the compiler's predefined macros, so the same source builds on AVX-512, AVX2 and ARM. Include this header
// before any other that reaches ATen/cpu/vec.
#pragma once

#if !defined(CPU_CAPABILITY)
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__FMA__)
#define CPU_CAPABILITY AVX512
#define CPU_CAPABILITY_AVX512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define CPU_CAPABILITY AVX2
#define CPU_CAPABILITY_AVX2
#else
#define CPU_CAPABILITY DEFAULT
#define CPU_CAPABILITY_DEFAULT
#endif
#endif

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
