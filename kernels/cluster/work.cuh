// SPDX-License-Identifier: Apache-2.0
//
// The device side of mla_schedule.h: one warp of each CTA finds this worker's share, walks the items
// in it and hands them to the warps that load and compute.
#pragma once

#include "kernels/cluster/config.cuh"
#include "kernels/common/mla_schedule.h"
#include "kernels/common/ptx.cuh"

namespace mla::cluster {

__device__ __forceinline__ int capacity(const DecodeParams& params) {
  const int64_t tokens = static_cast<int64_t>(params.max_pages_per_seq) << params.page_size_log2;
  return tokens < 0x7fffffff ? static_cast<int>(tokens) : 0x7fffffff;
}

__device__ __forceinline__ int load_seq_len(const DecodeParams& params, int request) {
  return reinterpret_cast<const int32_t*>(params.seq_lens)[request];
}

// Units of all query tokens of a request.
__device__ __forceinline__ int request_units(const DecodeParams& params, int request) {
  const int seq_len = load_seq_len(params, request);
  int units = 0;
  for (int t = 0; t < params.q_len; ++t) {
    units += item_units(visible_tokens(seq_len, capacity(params), params.q_len, t));
  }
  return units;
}

// Executed by one warp. Each lane sums a contiguous range of requests; the lane in whose range this
// worker begins walks on to the item.
__device__ __forceinline__ void find_share(const DecodeParams& params, int worker, int workers, int lane,
                                           Share* share) {
  const int per_lane = (params.batch + 31) / 32;
  const int first = lane * per_lane;
  const int last = min(first + per_lane, params.batch);
  int units = 0;
  for (int b = first; b < last; ++b) units += request_units(params, b);
  int inclusive = units;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffff, inclusive, d);
    if (lane >= d) inclusive += other;
  }
  const int length = __shfl_sync(0xffffffff, inclusive, 31);
  const int active = active_workers(length, workers);
  const bool takes_part = worker < active;
  const int begin = takes_part ? share_begin(worker, length, active) : length;
  const int end = takes_part ? share_begin(worker + 1, length, active) : length;

  int item_begin = inclusive - units;
  if (takes_part && item_begin <= begin && begin < inclusive) {
    int request = first;
    for (;; ++request) {
      const int next = item_begin + request_units(params, request);
      if (next > begin) break;
      item_begin = next;
    }
    const int seq_len = load_seq_len(params, request);
    int token = 0;
    for (;; ++token) {
      const int next =
          item_begin + item_units(visible_tokens(seq_len, capacity(params), params.q_len, token));
      if (next > begin) break;
      item_begin = next;
    }
    share->request = request;
    share->token = token;
    share->item_begin = item_begin;
  }
  if (lane == 0) {
    if (!takes_part) {
      share->request = params.batch;
      share->token = 0;
      share->item_begin = length;
    }
    share->begin = begin;
    share->end = end;
    share->length = length;
    share->workers = active;
  }
}

// A stage index and its phase parity in a ring of kStages.
template <int kStages>
struct RingCursor {
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Tile at which the share of worker c cuts an item.
__device__ __forceinline__ int item_cut(const Share& share, const DecodeParams& params, int c, int item_begin,
                                        int tiles) {
  return cut_tile(share_begin(c, share.length, share.workers) - item_begin, tiles,
                  split_granularity(tiles, params.max_splits));
}

__device__ __forceinline__ void init_queue_barriers(ItemQueue& queue) {
  for (int i = 0; i < kItemStages; ++i) {
    ptx::mbarrier_init(ptx::smem_addr(&queue.full[i]), 1);
    ptx::mbarrier_init(ptx::smem_addr(&queue.empty[i]), kItemReaders);
  }
}

// Executed by the scheduler warp. An item of whose tiles this worker has none is passed over.
__device__ __forceinline__ void schedule(const DecodeParams& params, ItemQueue& queue, int worker,
                                         int workers, int lane) {
  find_share(params, worker, workers, lane, &queue.share);
  __syncwarp();
  const Share share = queue.share;
  RingCursor<kItemStages> cursor;
  auto put = [&](const Item& item) {
    ptx::mbarrier_wait(ptx::smem_addr(&queue.empty[cursor.stage]), cursor.phase ^ 1);
    if (lane == 0) {
      queue.items[cursor.stage] = item;
      ptx::mbarrier_arrive(ptx::smem_addr(&queue.full[cursor.stage]));
    }
    __syncwarp();
    cursor.advance();
  };
  int request = share.request, token = share.token, item_begin = share.item_begin;
  while (item_begin < share.end) {
    const int seq_len = load_seq_len(params, request);
    for (; token < params.q_len && item_begin < share.end; ++token) {
      const int visible = visible_tokens(seq_len, capacity(params), params.q_len, token);
      const int tiles = item_tiles(visible);
      const int granularity = split_granularity(tiles, params.max_splits);
      const Item item{request,
                      request * params.q_len + token,
                      visible,
                      item_begin,
                      cut_tile(share.begin - item_begin, tiles, granularity),
                      cut_tile(share.end - item_begin, tiles, granularity),
                      tiles,
                      0};
      if (item.first_tile < item.last_tile) put(item);
      item_begin += item_units(visible);
    }
    token = 0;
    ++request;
  }
  put(Item{0, 0, 0, 0, 0, 0, 0, 0});
}

// How the other warps read the queue: `for (ItemReader r(queue, lane); r.next();)` with `r.item()`
// good until the following next(). Fields are read from shared memory where they are used; kept in
// registers, they would be in the way of the main loops.
struct ItemReader {
  ItemQueue& queue;
  const int lane;
  int taken = 0;

  __device__ __forceinline__ ItemReader(ItemQueue& q, int l) : queue(q), lane(l) {}

  __device__ __forceinline__ const Item& item() const { return queue.items[(taken - 1) % kItemStages]; }

  // Gives back the item before, waits for the next one. False: there is none.
  __device__ __forceinline__ bool next() {
    if (taken > 0) {
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ptx::smem_addr(&queue.empty[(taken - 1) % kItemStages]));
    }
    ptx::mbarrier_wait(ptx::smem_addr(&queue.full[taken % kItemStages]), taken / kItemStages & 1);
    ++taken;
    return item().first_tile < item().last_tile;
  }
};
static_assert((kItemStages & (kItemStages - 1)) == 0, "stage and phase are bits of a counter");

// ---- pages -------------------------------------------------------------------------------------

// A tile is loaded in chunks that lie in one page each: min(page_size, 64) tokens.
__device__ __forceinline__ int chunk_tokens_log2(const DecodeParams& params) {
  return min(params.page_size_log2, 6);
}

struct Chunk {
  int page;  // -1: nothing to read there (past the visible tokens, or a bad page id); fills with zero
  int row;   // first token of the chunk within its page
  bool bad;  // visible tokens whose page id is outside the pool
};

__device__ __forceinline__ Chunk load_chunk(const DecodeParams& params, const Item& item, int tile,
                                            int chunk) {
  const int token = tile * kTileTokens + (chunk << chunk_tokens_log2(params));
  Chunk c{-1, token & ((1 << params.page_size_log2) - 1), false};
  if (token < item.visible) {
    const int32_t* row =
        reinterpret_cast<const int32_t*>(params.page_table) + item.request * params.page_table_stride;
    const int page = row[token >> params.page_size_log2];
    c.bad = page < 0 || page >= params.pages;
    if (!c.bad) c.page = page;
  }
  return c;
}

}  // namespace mla::cluster
