// Philox4x32-10, a counter-based random generator: the words depend on (counter, key) and on nothing else, so noise can
// be drawn in any order, on any device, and again.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace tlt_engine {

struct PhiloxWords {
  uint32_t word[4];
};

TLT_HOST_DEVICE PhiloxWords philox4x32(PhiloxWords counter, uint32_t key_lo, uint32_t key_hi) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53u;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr uint32_t kWeyl1 = 0xBB67AE85u;
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * c0;
    const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key_lo;
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key_hi;
    c1 = static_cast<uint32_t>(product1);
    c3 = static_cast<uint32_t>(product0);
    key_lo += kWeyl0;
    key_hi += kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace tlt_engine
