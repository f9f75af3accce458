// Swap-in of missed KV items from pinned host memory into the hot buffer of a decoder with sparse
// attention, under the rules of docs/semantics.md.
//
// One thread-block cluster serves one request. Every block of the cluster plans the whole request
// in its own shared memory (planning waits more than it works, so doing it again is nearly free and
// needs no messages), and then copies its share of the misses. Only rank 0 writes state, and only
// after a cluster barrier says that everybody has read it.
// Compiled once per (TOP_K, BUFFER, ITEM_BYTES).

#include <cstdint>
#include <cuda_runtime.h>

#if !defined(TOP_K) || !defined(BUFFER) || !defined(ITEM_BYTES)
#error "compile with -DTOP_K=... -DBUFFER=... -DITEM_BYTES=..."
#endif
#ifndef THREADS
#define THREADS 1024
#endif

namespace {

constexpr int kThreads = THREADS;
constexpr int kWarps = kThreads / 32;
constexpr int kRow = (TOP_K + kThreads - 1) / kThreads;     // row entries of a thread
constexpr int kSlots = (BUFFER + kThreads - 1) / kThreads;  // slots of a thread
constexpr int kChunks = ITEM_BYTES / 16;                    // 16-byte pieces of an item

constexpr int log2_ceil(int n) {
  int bits = 0;
  while ((1 << bits) < n) ++bits;
  return bits;
}
constexpr int kBucketBits = log2_ceil(2 * TOP_K);
constexpr int kBuckets = 1 << kBucketBits;  // of two entries: a quarter full at most

static_assert(ITEM_BYTES % 16 == 0, "items move in 16-byte pieces");
static_assert(TOP_K <= BUFFER && BUFFER <= 32767, "slot ids are int16");
static_assert(kThreads % 32 == 0 && kThreads <= 1024, "");

constexpr int16_t kMiss = -1;  // for a slot: not resident

// The demanded positions. Nearly every one finds room in its own bucket, by one atomic, and nearly
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

// What a block knows about its request.
struct Plan {
  union {
    Demanded demanded;  // until the slots have been looked up
    Misses missed;      // from then on
  };
  int32_t loc[BUFFER + 1];  // device place of every slot; the last is the newest token's
  uint32_t warp_sum[kWarps];
  uint32_t hit[(BUFFER + 31) / 32];  // a bit for every slot: is its token demanded
};

__device__ __forceinline__ int bucket_of(int32_t position) {
  return static_cast<uint32_t>(position) * 2654435769u >> (32 - kBucketBits);
}

__device__ __forceinline__ int after(int bucket) { return (bucket + 1) & (kBuckets - 1); }

__device__ __forceinline__ int64_t read_index(const void* values, int wide, int i) {
  return wide ? static_cast<const int64_t*>(values)[i] : static_cast<const int32_t*>(values)[i];
}

// Read-only and through L1: where an item does not start at a 32-byte sector, two warps share one,
// and L1 keeps it from crossing the link twice (4 % of the time for items of 656 bytes).
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

// Arguments of the swap-in; strides in elements. Mirrored by native.py.
struct SwapIn {
  const int32_t* top_k;       // [batch, TOP_K] demanded positions, -1 = padding
  int32_t* tokens;            // [requests, BUFFER + page] position held by every slot, -1 = empty
  const int32_t* locs;        // [requests, BUFFER + page] device place of every slot
  const int64_t* host_locs;   // [requests, context] host place of every position
  int16_t* order;             // [requests, BUFFER] slots, next victim first
  int32_t* out;               // [batch, TOP_K] device place of every demanded position
  const void* request;        // [batch] row of the request in the tables above
  const void* seq_len;        // [batch] tokens, the newest included
  const int32_t* real;        // [1] rows of the batch that are not padding; null: all
  const char* host;
  char* device;
  int64_t* plan_source;       // [batch, plan_stride] or null: host place of every miss
  int32_t* plan_target;       // its device place
  int32_t* plan_count;        // [batch]
  int64_t top_k_stride, tokens_stride, locs_stride, host_stride, order_stride, out_stride;
  int64_t plan_stride;
  int32_t batch, cluster, wide_request, wide_seq_len, skip_io;
};

__global__ void __launch_bounds__(kThreads, 1) swap_in_kernel(const SwapIn a) {
  extern __shared__ __align__(16) unsigned char shared[];
  Plan& plan = *reinterpret_cast<Plan*>(shared);
  const int tid = threadIdx.x;
  const int rank = cluster_rank();
  const int row = blockIdx.x / a.cluster;
  int32_t* const out = a.out + row * a.out_stride;

  // Everything that needs no other load first.
  const int64_t request = read_index(a.request, a.wide_request, row);
  const int64_t seq_len = read_index(a.seq_len, a.wide_seq_len, row);
  const int real = a.real ? *a.real : a.batch;
  const int32_t* const top_k = a.top_k + row * a.top_k_stride;
  int32_t position[kRow];  // row entries tid * kRow ...: consecutive, so that one scan orders them
#pragma unroll
  for (int j = 0; j < kRow; ++j) {
    const int i = tid * kRow + j;
    position[j] = i < TOP_K ? top_k[i] : -1;
  }

  for (int b = tid; b < kBuckets; b += kThreads) {
    plan.demanded.position[b] = make_int2(-1, -1);
    plan.demanded.wanted[b] = 0;
  }
  __syncthreads();

  if (row >= real) {  // rows that pad the batch to a captured size
    if (rank == 0) {
      for (int i = tid; i < TOP_K; i += kThreads) out[i] = -1;
    }
    return;
  }
  const int32_t* const locs = a.locs + request * a.locs_stride;
  if (seq_len <= BUFFER) {  // rule 1: position p lies in slot p
    if (rank == 0) {
#pragma unroll
      for (int j = 0; j < kRow; ++j) {
        const int i = tid * kRow + j;
        const bool valid = position[j] >= 0 && position[j] < seq_len;
        if (i < TOP_K) out[i] = valid ? locs[position[j]] : -1;
      }
      if (tid == 0 && a.plan_count) a.plan_count[row] = 0;
    }
    return;
  }

  int32_t* const tokens = a.tokens + request * a.tokens_stride;
  int16_t* const order = a.order + request * a.order_stride;
  const int64_t* const host_locs = a.host_locs + request * a.host_stride;

  // All of the request's state, in flight while the table is built.
  int32_t token[kSlots];     // slots tid, tid + kThreads, ...
  int32_t loc[kSlots];       // their places
  int16_t in_order[kSlots];  // places tid * kSlots ... of the order
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const int s = tid + j * kThreads;
    token[j] = s < BUFFER ? tokens[s] : -1;
    loc[j] = s < BUFFER ? locs[s] : -1;
  }
  read_order(order, in_order);
  const int32_t newest_loc = tid == 0 ? locs[BUFFER] : 0;

  // Rule 2 and the table of what is demanded.
  Demanded& demanded = plan.demanded;
  int entry[kRow];  // bucket while pending; then the position's entry, if a slot may hold it
  uint32_t pending = 0;
#pragma unroll
  for (int j = 0; j < kRow; ++j) {
    entry[j] = bucket_of(position[j]);
    if (position[j] >= 0 && position[j] != seq_len - 1) pending |= 1u << j;
  }
  const uint32_t listed = pending;
  while (pending) {
#pragma unroll
    for (int j = 0; j < kRow; ++j) {
      if (!(pending >> j & 1)) continue;
      const int way = atomicAdd(&demanded.wanted[entry[j]], 1);
      if (way < 2) {
        entry[j] = entry[j] * 2 + way;
        reinterpret_cast<int32_t*>(demanded.position)[entry[j]] = position[j];
        demanded.slot[entry[j]] = kMiss;  // until a slot says otherwise
        pending &= ~(1u << j);
      } else {
        entry[j] = after(entry[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const int s = tid + j * kThreads;
    if (s < BUFFER) plan.loc[s] = loc[j];
  }
  if (tid == 0) plan.loc[BUFFER] = newest_loc;
  __syncthreads();

  // Rule 3: which slots hold a demanded token. All of a thread's slots at once.
  int at[kSlots];
  uint32_t found = 0;
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    at[j] = bucket_of(token[j]);
    if (token[j] >= 0) pending |= 1u << j;
  }
  while (pending) {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      if (!(pending >> j & 1)) continue;
      const int2 there = demanded.position[at[j]];
      const bool first = there.x == token[j];
      if (first || there.y == token[j]) {
        demanded.slot[at[j] * 2 + !first] = static_cast<int16_t>(tid + j * kThreads);
        found |= 1u << j;
        pending &= ~(1u << j);
      } else if (there.y == -1) {  // there was room, so it is not in a later bucket either
        pending &= ~(1u << j);
      }
      at[j] = after(at[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const int s = tid + j * kThreads;
    const uint32_t bits = __ballot_sync(~0u, found >> j & 1);
    if ((tid & 31) == 0 && s < BUFFER) plan.hit[s / 32] = bits;
  }
  __syncthreads();

  // Rule 4: hits and misses counted in one scan, in order of the slots and of the row.
  uint32_t counts = 0;
  uint32_t hits_here = 0;
  uint32_t misses_here = 0;
  int16_t row_slot[kRow];  // of every row entry: the newest token's, kMiss, or the slot that hit
  int64_t source[kRow];
#pragma unroll
  for (int j = 0; j < kRow; ++j) {
    row_slot[j] = BUFFER;
    if (!(listed >> j & 1)) continue;
    row_slot[j] = demanded.slot[entry[j]];
    if (row_slot[j] == kMiss) {
      source[j] = host_locs[position[j]];  // in flight during the scan
      misses_here |= 1u << j;
      counts += 1u << 16;
    }
  }
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    if (in_order[j] >= 0 && plan.hit[in_order[j] / 32] >> (in_order[j] % 32) & 1) {
      hits_here |= 1u << j;
      ++counts;
    }
  }
  if (a.cluster > 1) cluster_arrive();  // this thread needs no more state, and has all it asked for
  uint32_t total;
  const uint32_t before = block_scan(counts, plan.warp_sum, &total) - counts;
  const int hits = total & 0xffff;
  const int misses = total >> 16;
  const int evictable = BUFFER - hits;

  Misses& missed = plan.missed;
  int miss = before >> 16;
  int first_miss = miss;
#pragma unroll
  for (int j = 0; j < kRow; ++j) {
    if (misses_here >> j & 1) missed.source[miss++] = source[j];
  }
  int hit_rank = before & 0xffff;
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const int p = tid * kSlots + j;
    const bool is_hit = hits_here >> j & 1;
    if (p < BUFFER && !is_hit && p - hit_rank < misses) missed.victim[p - hit_rank] = in_order[j];
    hit_rank += is_hit;
  }
  __syncthreads();

  if (rank == 0) {
    if (a.cluster > 1) cluster_wait();
    // Rule 5: unused evictables, then the misses, then the hits.
    hit_rank = before & 0xffff;
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      const int p = tid * kSlots + j;
      const bool is_hit = hits_here >> j & 1;
      const int evict_rank = p - hit_rank;
      const int place = is_hit ? evictable + hit_rank
                        : evict_rank < misses ? evictable - misses + evict_rank
                                              : evict_rank - misses;
      if (p < BUFFER) order[place] = in_order[j];
      hit_rank += is_hit;
    }
#pragma unroll
    for (int j = 0; j < kRow; ++j) {
      const int i = tid * kRow + j;
      if (i >= TOP_K) continue;
      int slot = row_slot[j];
      if (misses_here >> j & 1) {
        slot = missed.victim[first_miss];
        tokens[slot] = position[j];
        if (a.plan_source) {
          a.plan_source[row * a.plan_stride + first_miss] = source[j];
          a.plan_target[row * a.plan_stride + first_miss] = plan.loc[slot];
        }
        ++first_miss;
      }
      out[i] = position[j] >= 0 ? plan.loc[slot] : -1;
    }
    if (tid == 0 && a.plan_count) a.plan_count[row] = misses;
  }

  // Rule 6: misses rank, rank + cluster, ... are this block's to move.
  if (!a.skip_io) {
    const int mine = (misses - rank + a.cluster - 1) / a.cluster;
    const auto place = [&](int piece, const char** from, char** to) {
      const int item = piece / kChunks;
      const int at = (piece - item * kChunks) * 16;
      const int m = rank + item * a.cluster;
      *from = a.host + missed.source[m] * ITEM_BYTES + at;
      *to = a.device + static_cast<int64_t>(plan.loc[missed.victim[m]]) * ITEM_BYTES + at;
    };
    // A block that serves a request alone needs more reads in flight to keep the link busy.
    if (a.cluster == 1) {
      copy_pieces<8>(tid, kThreads, mine * kChunks, place);
    } else {
      copy_pieces<4>(tid, kThreads, mine * kChunks, place);
    }
  }
  if (rank != 0) cluster_wait();
}

// Arguments of a plan's replay; strides in elements. Mirrored by native.py.
struct Planned {
  const int64_t* source;  // [batch, stride] host place of every miss
  const int32_t* target;  // [batch, stride] its device place
  const int32_t* count;   // [batch]
  const int32_t* real;    // [1]
  const char* host;
  char* device;
  int64_t stride;
  int32_t batch, blocks, skip_io;
};

// Moves the items of a recorded plan: no state, no decisions. The misses of all requests are one
// list, dealt out in 16-byte pieces over the grid.
__global__ void __launch_bounds__(kThreads, 1) planned_kernel(const Planned a) {
  __shared__ int end[kThreads];  // misses up to and including every request of the window
  __shared__ uint32_t warp_sum[kWarps];
  const int tid = threadIdx.x;
  const int real = min(*a.real, a.batch);
  for (int window = 0; window < real; window += kThreads) {
    const int rows = min(kThreads, real - window);
    uint32_t total;
    __syncthreads();  // the last window's readers are done
    end[tid] = block_scan(tid < rows ? a.count[window + tid] : 0, warp_sum, &total);
    __syncthreads();
    if (a.skip_io) continue;
    const int stride = a.blocks * kThreads;
    const int pieces = static_cast<int>(total) * kChunks;
    copy_pieces<4>(blockIdx.x * kThreads + tid, stride, pieces,
                [&](int piece, const char** from, char** to) {
                  const int item = piece / kChunks;
                  const int at = (piece - item * kChunks) * 16;
                  int low = 0;  // first request whose end lies behind the item
                  for (int high = rows - 1; low < high;) {
                    const int middle = (low + high) / 2;
                    if (end[middle] > item) high = middle; else low = middle + 1;
                  }
                  const int64_t m = (window + low) * a.stride + item - (low ? end[low - 1] : 0);
                  *from = a.host + a.source[m] * ITEM_BYTES + at;
                  *to = a.device + static_cast<int64_t>(a.target[m]) * ITEM_BYTES + at;
                });
  }
}

__global__ void empty_kernel() {}

// Keeps the stream busy while the host puts behind it what is to be timed.
__global__ void delay_kernel(uint64_t ns) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < ns);
}

namespace {

cudaError_t launch(const void* kernel, int blocks, int cluster, size_t shared_bytes, void* argument,
                   void* stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  void* arguments[] = {argument};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

// The address under which the GPU reads pinned host memory; null if it cannot.
const char* device_view(const void* host) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  // Pageable memory may be reachable on some systems, but far too slowly.
  if (attributes.type == cudaMemoryTypeUnregistered) return nullptr;
  return static_cast<const char*>(attributes.devicePointer);
}

}  // namespace

extern "C" {

// Loads the kernels, so that a first call may be captured into a graph.
int hs_prepare(int device) {
  cudaError_t error = cudaSetDevice(device);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(swap_in_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(Plan));
  if (error != cudaSuccess) return error;
  cudaFuncAttributes unused;
  error = cudaFuncGetAttributes(&unused, planned_kernel);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&unused, empty_kernel);
}

int hs_shared_bytes() { return sizeof(Plan); }

int hs_swap_in(SwapIn* a, void* stream) {
  a->host = device_view(a->host);
  if (!a->host) return cudaErrorHostMemoryNotRegistered;
  return launch(reinterpret_cast<const void*>(swap_in_kernel), a->batch * a->cluster, a->cluster,
                sizeof(Plan), a, stream);
}

int hs_copy_planned(Planned* a, void* stream) {
  a->host = device_view(a->host);
  if (!a->host) return cudaErrorHostMemoryNotRegistered;
  return launch(reinterpret_cast<const void*>(planned_kernel), a->blocks, 1, 0, a, stream);
}

int hs_empty(void* stream) {
  empty_kernel<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>();
  return cudaGetLastError();
}

int hs_delay(int64_t ns, void* stream) {
  delay_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(ns);
  return cudaGetLastError();
}

const char* hs_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
}
