// Task: moves the K/V of accepted tree rows to the slots where plain decoding would have put them, in every layer.
//
// Memory: a plane is one layer's keys or values, [num_blocks, block_size, num_kv_heads, head_size] with any strides
// (the CPU cache keeps keys transposed inside a block). Elements are moved as raw bytes; runs that lie together in
// memory are merged into units of up to 16 bytes.
//
// Invariant: within a request a move's destination is never a later move's source, so moves carried out in order need
// no staging. Requests own disjoint slots, and the units of a slot are independent of each other.
//
// Parallelisation: one block per (plane, request). A thread owns some units and carries out all moves for each, in
// order: no synchronisation, and in a transposed plane the moves of one unit share cache lines.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace tlt_engine {

// Strides in bytes.
struct PlaneDescriptor {
  char* data;
  int64_t block_stride;
  int64_t slot_stride;
  int64_t head_stride;
  int64_t unit_stride;
  int32_t block_size;
  int32_t num_heads;
  int32_t units_per_head;
  int32_t unit_bytes;  // 1, 2, 4, 8 or 16
};

// Planes travel as a kernel argument, which may hold 4 KiB: 64 planes of 56 bytes a launch.
constexpr int kPlanesPerLaunch = 64;

struct PlaneChunk {
  PlaneDescriptor plane[kPlanesPerLaunch];
};

TLT_HOST_DEVICE int64_t slot_offset(const PlaneDescriptor& plane, int64_t slot) {
  return slot / plane.block_size * plane.block_stride + slot % plane.block_size * plane.slot_stride;
}

TLT_HOST_DEVICE int64_t unit_offset(const PlaneDescriptor& plane, int64_t unit) {
  return unit / plane.units_per_head * plane.head_stride + unit % plane.units_per_head * plane.unit_stride;
}

// The same plane in the widest units that its strides and its address allow.
TLT_HOST_DEVICE PlaneDescriptor with_wide_units(PlaneDescriptor plane) {
  if (plane.unit_stride != plane.unit_bytes) return plane;
  if (plane.head_stride == plane.units_per_head * plane.unit_stride) {  // heads lie together: one long head
    plane.units_per_head *= plane.num_heads;
    plane.num_heads = 1;
  }
  const auto everything = reinterpret_cast<uintptr_t>(plane.data) | static_cast<uintptr_t>(plane.block_stride) |
                          static_cast<uintptr_t>(plane.slot_stride) |
                          static_cast<uintptr_t>(plane.num_heads > 1 ? plane.head_stride : 0);
  while (plane.unit_bytes < 16 && plane.units_per_head % 2 == 0 && everything % (2 * plane.unit_bytes) == 0) {
    plane.unit_bytes *= 2;
    plane.unit_stride *= 2;
    plane.units_per_head /= 2;
  }
  return plane;
}

struct alignas(16) Unit16 {
  uint64_t half[2];
};

// Carries out a request's moves for one unit of every slot. slot_offsets holds (source, destination) pairs of bytes.
template <typename Unit>
TLT_HOST_DEVICE void move_unit(char* unit, const int64_t* slot_offsets, int64_t num_moves) {
  for (int64_t move = 0; move < num_moves; ++move) {
    *reinterpret_cast<Unit*>(unit + slot_offsets[2 * move + 1]) =
        *reinterpret_cast<const Unit*>(unit + slot_offsets[2 * move]);
  }
}

TLT_HOST_DEVICE void move_units(const PlaneDescriptor& plane, int64_t first_unit, int64_t unit_step,
                                const int64_t* slot_offsets, int64_t num_moves) {
  const int64_t num_units = static_cast<int64_t>(plane.num_heads) * plane.units_per_head;
  for (int64_t unit = first_unit; unit < num_units; unit += unit_step) {
    char* data = plane.data + unit_offset(plane, unit);
    switch (plane.unit_bytes) {
      case 1:
        move_unit<uint8_t>(data, slot_offsets, num_moves);
        break;
      case 2:
        move_unit<uint16_t>(data, slot_offsets, num_moves);
        break;
      case 4:
        move_unit<uint32_t>(data, slot_offsets, num_moves);
        break;
      case 8:
        move_unit<uint64_t>(data, slot_offsets, num_moves);
        break;
      default:
        move_unit<Unit16>(data, slot_offsets, num_moves);
    }
  }
}

#if defined(__CUDACC__)

constexpr int kMovesPerPass = 64;  // a tree of 64 rows accepts fewer, so one pass is the rule

// Grid: (planes of the chunk, requests).
__global__ void kv_compact_kernel(const __grid_constant__ PlaneChunk chunk, const int64_t* src_slots,
                                  const int64_t* dst_slots, const int32_t* cu_moves) {
  __shared__ int64_t slot_offsets[2 * kMovesPerPass];
  const PlaneDescriptor& plane = chunk.plane[blockIdx.x];
  const int32_t end_move = cu_moves[blockIdx.y + 1];
  for (int32_t first_move = cu_moves[blockIdx.y]; first_move < end_move; first_move += kMovesPerPass) {
    const int32_t num_moves = min(end_move - first_move, kMovesPerPass);
    for (int32_t move = threadIdx.x; move < num_moves; move += blockDim.x) {
      slot_offsets[2 * move] = slot_offset(plane, src_slots[first_move + move]);
      slot_offsets[2 * move + 1] = slot_offset(plane, dst_slots[first_move + move]);
    }
    __syncthreads();
    move_units(plane, threadIdx.x, blockDim.x, slot_offsets, num_moves);
    __syncthreads();
  }
}

#endif

}  // namespace tlt_engine
