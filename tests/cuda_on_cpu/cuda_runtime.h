// What the swap-in kernel uses of CUDA, for one block on a processor: every thread is a fiber that
// runs until it has to wait for others. Takes the place of the toolkit's header of this name.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
// Inline PTX: only what moves bytes is left on a processor, and that is not run.
#define asm
#define volatile(...)

using std::max;
using std::min;

struct int2 { int x, y; };
struct uint4 { uint32_t x, y, z, w; };
struct Index { int x; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int atomicAdd(int* at, int value) { int before = *at; *at += value; return before; }

namespace emulated {

constexpr int kFibers = 1024;
inline ucontext_t scheduler, fibers[kFibers];
inline int current;  // the fiber that runs
inline int block;
inline bool done[kFibers];

inline void wait() { swapcontext(&fibers[current], &scheduler); }

// Arrivals of `size` fibers; a round ends when all have come.
struct Barrier {
  int arrived = 0, round = 0;
  void operator()(int size) {
    const int mine = round;
    if (++arrived == size) {
      arrived = 0;
      ++round;
    }
    while (round == mine) wait();
  }
};
inline Barrier whole, warps[kFibers / 32];
inline uint32_t lanes[2][kFibers];  // values of one exchange, while those of the last are read
inline int exchange[kFibers];

inline const uint32_t* exchanged(uint32_t value) {
  uint32_t* values = lanes[exchange[current]++ & 1];
  values[current] = value;
  warps[current / 32](32);
  return values + current / 32 * 32;
}

template <typename Kernel>
void run_block(int index, Kernel kernel) {
  static std::vector<char> stacks(size_t{kFibers} << 15);
  static Kernel* body;
  body = &kernel;
  block = index;
  whole = {};
  for (Barrier& warp : warps) warp = {};
  for (int i = 0; i < kFibers; ++i) {
    done[i] = false;
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = &stacks[size_t(i) << 15];
    fibers[i].uc_stack.ss_size = 1 << 15;
    fibers[i].uc_link = &scheduler;
    makecontext(&fibers[i], +[] { (*body)(); done[current] = true; }, 0);
  }
  for (bool running = true; running;) {
    running = false;
    for (current = 0; current < kFibers; ++current) {
      if (done[current]) continue;
      running = true;
      swapcontext(&scheduler, &fibers[current]);
    }
  }
}

}  // namespace emulated

#define threadIdx (Index{emulated::current})
#define blockIdx (Index{emulated::block})

inline void __syncthreads() { emulated::whole(emulated::kFibers); }
inline uint32_t __shfl_up_sync(uint32_t, uint32_t value, int by) {
  const int lane = emulated::current % 32;
  const uint32_t* values = emulated::exchanged(value);
  return lane >= by ? values[lane - by] : value;
}
inline uint32_t __shfl_sync(uint32_t, uint32_t value, int lane) {
  return emulated::exchanged(value)[lane];
}
inline uint32_t __ballot_sync(uint32_t, uint32_t bit) {
  const uint32_t* values = emulated::exchanged(bit);
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= (values[lane] & 1) << lane;
  return bits;
}
