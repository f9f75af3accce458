// Swap-in of missed KV entries from pinned host memory into the hot buffer of a decoder with sparse
// attention, under the rules of docs/semantics.md.
//
// One thread-block cluster serves one request. Every block of the cluster plans the whole request
// in its own shared memory (planning waits more than it works, so doing it again is nearly free and
// needs no messages), and then copies its share of the misses. Only rank 0 writes state, and only
// after a cluster barrier says that everybody has read it.
// Compiled once per (TOP_K, BUFFER, ENTRY_BYTES).

#pragma once

#include "pieces.cuh"

// Arguments of the swap-in; strides in elements. Mirrored by native.py.
struct SwapIn {
  const int32_t* top_k;       // [batch, TOP_K] selected positions, -1 = padding
  int32_t* tokens;            // [requests, BUFFER + page] position held by every slot, -1 = empty
  const int32_t* locs;        // [requests, BUFFER + page] device place of every slot
  const int64_t* host_locs;   // [requests, context] host place of every position
  int16_t* order;             // [requests, BUFFER] slots, next victim first
  int32_t* out;               // [batch, TOP_K] device place of every selected position
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
  int32_t early;  // launched while the kernel before may still run, which writes top_k and worth at most
  const uint8_t* worth;       // [batch, worth_stride] of every position; null: LRU
  int64_t worth_stride;
};

// With kWorth the rule is not LRU but that of policies/fast_slow.py: `order` holds two sums of every
// slot in place of slots, 7 bits of `fast` below 9 of `slow`, and `worth` what every position is
// worth in this step, 0 to 62.
template <bool kWorth>
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
  const auto read_row = [&] {
#pragma unroll
    for (int j = 0; j < kRow; ++j) {
      const int i = tid * kRow + j;
      position[j] = i < TOP_K ? top_k[i] : -1;
    }
  };
  if (!a.early) read_row();

  for (int b = tid; b < kBuckets; b += kThreads) {
    plan.demanded.position[b] = make_int2(-1, -1);
    plan.demanded.wanted[b] = 0;
  }
  if constexpr (kWorth) {
    plan.ranked.slots_of[tid] = 0;
    if (tid == 0) plan.ranked.key = plan.ranked.ties = plan.ranked.empty = 0;
  }
  int32_t* const tokens = a.tokens + request * a.tokens_stride;
  int16_t* const order = a.order + request * a.order_stride;
  const int32_t* const locs = a.locs + request * a.locs_stride;
  const int64_t* const host_locs = a.host_locs + request * a.host_stride;

  // All of the request's state, in flight while the table is built.
  // Slots are spread over the threads, but consecutive where victims are found in their order.
  const auto slot_of = [&](int j) { return kWorth ? tid * kSlots + j : tid + j * kThreads; };
  int32_t token[kSlots];     // of slots slot_of(0), slot_of(1), ...
  int32_t loc[kSlots];       // places of slots tid, tid + kThreads, ...
  int16_t in_order[kSlots];  // places tid * kSlots ... of the order, or the sums of these slots
  int32_t newest_loc = 0;
  if (row < real && seq_len > BUFFER) {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      token[j] = slot_of(j) < BUFFER ? tokens[slot_of(j)] : -1;
      const int s = tid + j * kThreads;
      loc[j] = s < BUFFER ? locs[s] : -1;
    }
    read_order(order, in_order);
    newest_loc = tid == 0 ? locs[BUFFER] : 0;
  }
  if (a.early) {
    wait_for_the_kernel_before();
    read_row();
  }
  [[maybe_unused]] const uint8_t* const worth = kWorth ? a.worth + row * a.worth_stride : nullptr;
  [[maybe_unused]] int now[kSlots];  // what the tokens are worth
  if constexpr (kWorth) {
    if (row < real && seq_len > BUFFER) {
#pragma unroll
      for (int j = 0; j < kSlots; ++j) now[j] = token[j] >= 0 ? worth[token[j]] : 0;
    }
  }
  __syncthreads();

  if (row >= real) {  // rows that pad the batch to a captured size
    if (rank == 0) {
      for (int i = tid; i < TOP_K; i += kThreads) out[i] = -1;
    }
    return;
  }
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

  // Rule 2 and the table of what is selected.
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

  // Rule 3: which slots hold a selected token. All of a thread's slots at once.
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
        demanded.slot[at[j] * 2 + !first] = static_cast<int16_t>(slot_of(j));
        found |= 1u << j;
        pending &= ~(1u << j);
      } else if (there.y == -1) {  // there was room, so it is not in a later bucket either
        pending &= ~(1u << j);
      }
      at[j] = after(at[j]);
    }
  }
  [[maybe_unused]] int key[kSlots];
  if constexpr (kWorth) {
    const int tick = (seq_len - 1) % 16 == 0;  // when `slow` falls by one at least
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      const int sums = static_cast<uint16_t>(in_order[j]);
      const int fast = (sums & 127) / 4 + now[j];
      const int slow = max((sums >> 7) - max(sums >> 10, tick), 0) + now[j];
      in_order[j] = packed(fast, slow);
      const bool evictable = slot_of(j) < BUFFER && !(found >> j & 1);
      key[j] = evictable && token[j] >= 0 ? min(slow + 6 * fast, kThreads - 1) : kKept;
      if (key[j] != kKept) atomicAdd(&plan.ranked.slots_of[key[j]], 1);
      if (evictable && token[j] < 0) atomicAdd(&plan.ranked.empty, 1);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      const int s = tid + j * kThreads;
      const uint32_t bits = __ballot_sync(~0u, found >> j & 1);
      if ((tid & 31) == 0 && s < BUFFER) plan.hit[s / 32] = bits;
    }
  }
  __syncthreads();

  // Rule 4: hits and misses counted in one scan, in order of the slots and of the row.
  uint32_t counts = 0;
  uint32_t hits_here = 0;
  uint32_t misses_here = 0;
  int16_t row_slot[kRow];  // of every row entry: the newest token's, kMiss, or the slot that hit
  int64_t source[kRow];
  [[maybe_unused]] int start[kRow];  // what a missed position is worth
#pragma unroll
  for (int j = 0; j < kRow; ++j) {
    row_slot[j] = BUFFER;
    if (!(listed >> j & 1)) continue;
    row_slot[j] = demanded.slot[entry[j]];
    if (row_slot[j] == kMiss) {
      source[j] = host_locs[position[j]];  // in flight during the scan
      if constexpr (kWorth) start[j] = worth[position[j]];
      misses_here |= 1u << j;
      counts += 1u << 16;
    }
  }
  if constexpr (kWorth) {
    counts += plan.ranked.slots_of[tid];
  } else {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      if (in_order[j] >= 0 && plan.hit[in_order[j] / 32] >> (in_order[j] % 32) & 1) {
        hits_here |= 1u << j;
        ++counts;
      }
    }
  }
  if (a.cluster > 1) cluster_arrive();  // this thread needs no more state, and has all it asked for
  uint32_t total;
  const uint32_t before = block_scan(counts, plan.warp_sum, &total) - counts;
  const int misses = total >> 16;

  Misses& missed = plan.missed;
  int miss = before >> 16;
  int first_miss = miss;
#pragma unroll
  for (int j = 0; j < kRow; ++j) {
    if (misses_here >> j & 1) missed.source[miss++] = source[j];
  }
  [[maybe_unused]] uint32_t taken = 0;  // which of this thread's slots are victims
  if constexpr (kWorth) {
    Ranked& ranked = plan.ranked;
    // Empty slots go first. They are filled in the order of slots, so they are the last ones.
    const int first_empty = BUFFER - ranked.empty;
    const int to_empty = min(misses, ranked.empty);
    const int lower = before & 0xffff;  // slots with keys below tid
    const int equal = counts & 0xffff;
    if (misses - to_empty > lower && misses - to_empty <= lower + equal) {
      ranked.key = tid;
      ranked.ties = misses - to_empty - lower;
    }
    __syncthreads();
    uint32_t mine = 0;
#pragma unroll
    for (int j = 0; j < kSlots; ++j) mine += (key[j] < ranked.key) + ((key[j] == ranked.key) << 16);
    const uint32_t ahead = block_scan(mine, plan.warp_sum, &total) - mine;
    int below = ahead & 0xffff;
    int ties = ahead >> 16;
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      const int s = slot_of(j);
      int place = -1;
      if (key[j] < ranked.key || (key[j] == ranked.key && ties < ranked.ties)) {
        place = to_empty + below + min(ties, ranked.ties);
      } else if (s < BUFFER && s >= first_empty && s - first_empty < to_empty) {
        place = s - first_empty;
      }
      if (place >= 0) {
        missed.victim[place] = static_cast<int16_t>(s);
        taken |= 1u << j;
      }
      below += key[j] < ranked.key;
      ties += key[j] == ranked.key;
    }
  } else {
    int hit_rank = before & 0xffff;
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      const int p = tid * kSlots + j;
      const bool is_hit = hits_here >> j & 1;
      if (p < BUFFER && !is_hit && p - hit_rank < misses) missed.victim[p - hit_rank] = in_order[j];
      hit_rank += is_hit;
    }
  }
  __syncthreads();

  if (rank == 0) {
    if (a.cluster > 1) cluster_wait();
    if constexpr (kWorth) {
#pragma unroll
      for (int j = 0; j < kSlots; ++j) {
        if (slot_of(j) < BUFFER && !(taken >> j & 1)) order[slot_of(j)] = in_order[j];
      }
    } else {
      // Rule 5: unused evictables, then the misses, then the hits.
      const int evictable = BUFFER - (total & 0xffff);
      int hit_rank = before & 0xffff;
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
    }
#pragma unroll
    for (int j = 0; j < kRow; ++j) {
      const int i = tid * kRow + j;
      if (i >= TOP_K) continue;
      int slot = row_slot[j];
      if (misses_here >> j & 1) {
        slot = missed.victim[first_miss];
        tokens[slot] = position[j];
        if constexpr (kWorth) order[slot] = packed(5 * start[j] >> 2, start[j] >> 1);
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
      *from = a.host + missed.source[m] * ENTRY_BYTES + at;
      *to = a.device + static_cast<int64_t>(plan.loc[missed.victim[m]]) * ENTRY_BYTES + at;
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
