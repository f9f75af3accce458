// What the kernels share: sizes, the plan of a request, sums over a block, reading over the link.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

#if !defined(TOP_K) || !defined(BUFFER) || !defined(ENTRY_BYTES)
#error "compile with -DTOP_K=... -DBUFFER=... -DENTRY_BYTES=..."
#endif

namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kRow = (TOP_K + kThreads - 1) / kThreads;     // row entries of a thread
constexpr int kSlots = (BUFFER + kThreads - 1) / kThreads;  // slots of a thread
constexpr int kChunks = ENTRY_BYTES / 16;                    // 16-byte pieces of an entry

constexpr int log2_ceil(int n) {
  int bits = 0;
  while ((1 << bits) < n) ++bits;
  return bits;
}
constexpr int kBucketBits = log2_ceil(2 * TOP_K);
constexpr int kBuckets = 1 << kBucketBits;  // of two entries: a quarter full at most

static_assert(ENTRY_BYTES % 16 == 0, "entries move in 16-byte pieces");
static_assert(TOP_K <= BUFFER && BUFFER <= 32767, "slot ids are int16");
static_assert(kThreads % 32 == 0 && kThreads <= 1024, "");

constexpr int16_t kMiss = -1;  // for a slot: not resident

// The selected positions. Nearly every one finds room in its own bucket, by one atomic, and nearly
// every look-up is one read of eight bytes; from a full bucket both go on to the next.
struct Demanded {
  int2 position[kBuckets];    // -1 = free
  int16_t slot[2 * kBuckets];  // that holds the position of every entry, or kMiss
  int32_t wanted[kBuckets];   // positions that came to the bucket
};

struct Misses {
  int64_t source[TOP_K];  // host place of the i-th miss
  int16_t victim[TOP_K];  // slot that it takes
};

constexpr int kKept = 1 << 15;  // above every key: the slot stays

// Which slots have the lowest keys.
struct Ranked {
  int32_t slots_of[kThreads];  // evictable slots by their key, which is at most 988
  int32_t key;    // slots of lower keys are victims,
  int32_t ties;   // and so many of this one
  int32_t empty;  // slots
};

__device__ __forceinline__ int16_t packed(int fast, int slow) {
  return static_cast<int16_t>(slow << 7 | fast);
}

// What a block knows about its request.
struct Plan {
  union {
    Demanded demanded;  // until the slots have been looked up
    Misses missed;      // from then on
  };
  int32_t loc[BUFFER + 1];  // device place of every slot; the last is the newest token's
  uint32_t warp_sum[kWarps];
  union {
    uint32_t hit[(BUFFER + 31) / 32];  // a bit for every slot: is its token selected
    Ranked ranked;
  };
};

__device__ __forceinline__ int bucket_of(int32_t position) {
  return static_cast<uint32_t>(position) * 2654435769u >> (32 - kBucketBits);
}

__device__ __forceinline__ int after(int bucket) { return (bucket + 1) & (kBuckets - 1); }

__device__ __forceinline__ int64_t read_index(const void* values, int wide, int i) {
  return wide ? static_cast<const int64_t*>(values)[i] : static_cast<const int32_t*>(values)[i];
}

// Read-only and through L1: where an entry does not start at a 32-byte sector, two warps share one,
// and L1 keeps it from crossing the link twice (4 % of the time for entries of 656 bytes).
__device__ __forceinline__ uint4 read_host(const char* from) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ int cluster_rank() {
#if __CUDA_ARCH__ >= 900
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

// Relaxed: a release would be a fence over the whole GPU. What must have happened before are loads,
// and the caller has used what they returned.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Of a kernel that was launched early: what the one before it wrote can be read from here on.
__device__ __forceinline__ void wait_for_the_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The places of the order that belong to this thread, two at a time where a pair fills a word.
__device__ __forceinline__ void read_order(const int16_t* order, int16_t (&mine)[kSlots]) {
  const int first = threadIdx.x * kSlots;
  if constexpr (kSlots % 2 == 0 && BUFFER % 2 == 0) {
#pragma unroll
    for (int j = 0; j < kSlots; j += 2) {
      const int pair = first + j < BUFFER ? *reinterpret_cast<const int*>(order + first + j) : -1;
      mine[j] = static_cast<int16_t>(pair);
      mine[j + 1] = static_cast<int16_t>(pair >> 16);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) mine[j] = first + j < BUFFER ? order[first + j] : int16_t{-1};
  }
}

// Inclusive sums over the block of two counts packed in one word (low and high 16 bits).
// `total` is the sum over the whole block. One block barrier.
__device__ __forceinline__ uint32_t block_scan(uint32_t value, uint32_t* warp_sum,
                                               uint32_t* total) {
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const uint32_t below = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value += below;
  }
  if (lane == 31) warp_sum[warp] = value;
  __syncthreads();
  uint32_t sums = lane < kWarps ? warp_sum[lane] : 0;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const uint32_t below = __shfl_up_sync(~0u, sums, d);
    if (lane >= d) sums += below;
  }
  *total = __shfl_sync(~0u, sums, 31);
  const uint32_t before = __shfl_sync(~0u, sums, warp ? warp - 1 : 0);
  return warp ? value + before : value;
}

// Copies pieces first, first + stride, ... below `pieces`, InFlight of them at a time; `place` maps
// a piece to its two ends.
template <int InFlight, typename Place>
__device__ __forceinline__ void copy_pieces(int first, int stride, int pieces, Place place) {
  for (int base = first; base < pieces; base += stride * InFlight) {
    uint4 data[InFlight];
    char* to[InFlight];
#pragma unroll
    for (int u = 0; u < InFlight; ++u) {
      const int piece = base + u * stride;
      if (piece < pieces) {
        const char* from;
        place(piece, &from, &to[u]);
        data[u] = read_host(from);
      }
    }
#pragma unroll
    for (int u = 0; u < InFlight; ++u) {
      if (base + u * stride < pieces) *reinterpret_cast<uint4*>(to[u]) = data[u];
    }
  }
}

}  // namespace
