// Marks the scalar core of an op: one function that the CUDA kernel and its CPU twin both call.
#pragma once

#if defined(__CUDACC__)
#define TLT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TLT_HOST_DEVICE inline
#endif
