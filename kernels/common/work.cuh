// SPDX-License-Identifier: Apache-2.0
//
// The device side of mla_schedule.h: one warp of a CTA finds this worker's share, walks the items in
// it and hands them to the warps that load and compute.
#pragma once

#include "kernels/common/mark.cuh"
#include "kernels/common/mla_schedule.h"
#include "kernels/common/ptx/barrier.cuh"
#include "kernels/common/ring.cuh"

namespace mla {

// This worker's piece of one item.
struct Item {
  int32_t request;      // < 0: there is no further item
  int32_t first_query;  // the request's first query token: a row of q, out and lse
  uint16_t count;       // query tokens of the request
  uint16_t first_row;   // of the row tile, within the request
  int32_t seq_len;
  int32_t visible_first;  // tokens that the first query token of the row tile sees
  int32_t visible;        // the same of the last one; more than the page table holds: see pages.cuh
  int32_t item_begin;     // on the line of units
  int32_t first_tile;     // the piece
  int32_t last_tile;      // exclusive
  int32_t tiles;          // of the whole item; 0: nothing to read, its rows are to be written

  __device__ __forceinline__ bool whole() const { return first_tile == 0 && last_tile == tiles; }
};

// The scheduler warp walks the share and hands the items to kReaders warps.
template <int kStages_, int kReaders_>
struct ItemQueue {
  static constexpr int kStages = kStages_;
  static constexpr int kReaders = kReaders_;
  static_assert((kStages & (kStages - 1)) == 0, "stage and phase are bits of a counter");

  Item items[kStages];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  Line line;

  __device__ __forceinline__ void init_barriers() {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(ptx::smem_addr(&full[i]), 1);
      ptx::mbarrier_init(ptx::smem_addr(&empty[i]), kReaders);
    }
  }
};

// How the other warps read the queue: `for (ItemReader r(queue, lane); r.next();)` with `r.item()`
// good until the following next(). Fields are read from shared memory where they are used; kept in
// registers, they would be in the way of the main loops.
template <class Queue>
struct ItemReader {
  Queue& queue;
  const int lane;
  int taken = 0;

  __device__ __forceinline__ ItemReader(Queue& q, int l) : queue(q), lane(l) {}

  __device__ __forceinline__ const Item& item() const { return queue.items[(taken - 1) % Queue::kStages]; }

  // Gives back the item before, waits for the next one. False: there is none.
  __device__ __forceinline__ bool next() {
    if (taken > 0) {
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ptx::smem_addr(&queue.empty[(taken - 1) % Queue::kStages]));
    }
    ptx::mbarrier_wait(ptx::smem_addr(&queue.full[taken % Queue::kStages]), taken / Queue::kStages & 1);
    ++taken;
    return item().request >= 0;
  }
};

// A kernel that finds no initialised workspace must not touch it: it then computes every item whole
// and makes NaN of what it computes.
__device__ __forceinline__ bool workspace_ready(const DecodeParams& params) {
  return params.workspace != 0 &&
         reinterpret_cast<const WorkspaceHeader*>(params.workspace)->magic == kWorkspaceMagic;
}

__device__ __forceinline__ Request load_request(const DecodeParams& params, int b) {
  const int32_t seq_len = reinterpret_cast<const int32_t*>(params.seq_lens)[b];
  if (params.q_offsets == 0) return Request{seq_len, b * params.q_len, params.q_len};
  const int32_t* offsets = reinterpret_cast<const int32_t*>(params.q_offsets) + b;
  return ragged_request(params, b, seq_len, offsets[0], offsets[1]);
}

// Do all row tiles of a request see the same tokens? So it is without several query tokens or causality.
__device__ __forceinline__ bool alike(const DecodeParams& params, const Request& request) {
  return request.count <= 1 || params.causal == 0;
}

// Units of an item of such a request.
__device__ __forceinline__ int units_of_alike(const ScheduleRule& rule, const DecodeParams& params,
                                              const Request& request, int32_t capacity) {
  return item_units(rule, item_tiles(rule, visible_tokens(params, request, 0), capacity));
}

// request_units, without the divisions that only several query tokens need: what a launch computes before
// its first copy is part of its latency.
__device__ __forceinline__ int units_of(const ScheduleRule& rule, const DecodeParams& params,
                                        const Request& request, int32_t capacity) {
  if (alike(params, request)) {
    return row_tiles(rule, request.count, params.heads) * units_of_alike(rule, params, request, capacity);
  }
  return request_units(rule, params, request, capacity);
}

// Where a worker begins and ends.
struct Share {
  int32_t request;  // first item: request, row tile, and its place on the line
  int32_t row_tile;
  int32_t item_begin;
  int32_t begin;  // this worker's units
  int32_t end;
  Line line;
};

// Executed by one warp. Each lane sums a contiguous range of requests; the lane in whose range this
// worker begins walks on to the item and tells the others.
__device__ __forceinline__ Share find_share(const ScheduleRule& rule, const DecodeParams& params, int worker,
                                            int workers, int lane) {
  const int32_t capacity = table_capacity(params);
  const int per_lane = (params.batch + 31) / 32;
  const int first = min(lane * per_lane, params.batch);
  const int last = min(first + per_lane, params.batch);
  int units = 0, least = 0x7fffffff, most = 0;
#pragma unroll 1
  for (int b = first; b < last; ++b) {
    const int next = units_of(rule, params, load_request(params, b), capacity);
    units += next;
    least = min(least, next);
    most = max(most, next);
  }
  // All requests alike, and so all items?
  least = __reduce_min_sync(0xffffffff, least);
  most = __reduce_max_sync(0xffffffff, most);
  int each = 0;
  if (least == most && params.q_offsets == 0) {
    const Request request = load_request(params, 0);
    each = alike(params, request) ? units_of_alike(rule, params, request, capacity)
                                  : units_of_each(rule, params, request, least, capacity);
  }
  int inclusive = units;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffff, inclusive, d);
    if (lane >= d) inclusive += other;
  }
  Share share{};
  share.line = cut_line(rule, __shfl_sync(0xffffffff, inclusive, 31), each, workers);
  const bool takes_part = worker < share.line.workers;
  share.begin = takes_part ? share_begin(worker, share.line.length, share.line.workers) : share.line.length;
  share.end = takes_part ? share_begin(worker + 1, share.line.length, share.line.workers) : share.line.length;

  share.request = params.batch;
  share.item_begin = share.line.length;
  const int before = inclusive - units;
  const bool mine = before <= share.begin && share.begin < inclusive;
  if (mine) {
    int item_begin = before;
    int b = first;
    Request request;
#pragma unroll 1
    for (;; ++b) {
      request = load_request(params, b);
      const int next = item_begin + units_of(rule, params, request, capacity);
      if (next > share.begin) break;
      item_begin = next;
    }
    int tile = 0;
    if (alike(params, request)) {
      const int32_t each = units_of_alike(rule, params, request, capacity);
      tile = (share.begin - item_begin) / each;
      item_begin += tile * each;
    }
#pragma unroll 1
    for (;; ++tile) {
      const int32_t tiles = item_tiles(rule, item_visible(rule, params, request, tile), capacity);
      const int next = item_begin + item_units(rule, tiles);
      if (next > share.begin) break;
      item_begin = next;
    }
    share.request = b;
    share.row_tile = tile;
    share.item_begin = item_begin;
  }
  const uint32_t holder = __ballot_sync(0xffffffff, mine);
  if (holder != 0) {  // else nothing begins here
    const int source = __ffs(holder) - 1;
    share.request = __shfl_sync(0xffffffff, share.request, source);
    share.row_tile = __shfl_sync(0xffffffff, share.row_tile, source);
    share.item_begin = __shfl_sync(0xffffffff, share.item_begin, source);
  }
  return share;
}

// Hands items to the queue: `fill` writes one, in one lane.
template <class Queue>
struct QueueWriter {
  Queue& queue;
  const int lane;
  RingCursor<Queue::kStages> cursor;

  template <class Fill>
  __device__ __forceinline__ void put(const Fill& fill) {
    ptx::mbarrier_wait(ptx::smem_addr(&queue.empty[cursor.stage]), cursor.phase ^ 1);
    if (lane == 0) {
      fill(queue.items[cursor.stage]);
      ptx::mbarrier_arrive(ptx::smem_addr(&queue.full[cursor.stage]));
    }
    __syncwarp();
    cursor.advance();
  }
};

// Do all items of a request see all of it, and have all requests as many items?
__device__ __forceinline__ bool is_plain(const DecodeParams& params) {
  return params.q_offsets == 0 && (params.q_len == 1 || params.causal == 0) && params.cp_size <= 1;
}

// schedule() for such launches, which most are: little code, for what runs before the first copy runs once,
// and its instructions come from far away.
template <class Queue, class Split>
__device__ __forceinline__ void schedule_plain(const ScheduleRule& rule, const DecodeParams& params,
                                               Queue& queue, int worker, int workers, int lane,
                                               const Split& on_split) {
  const bool ready = workspace_ready(params);
  const int32_t* seq_lens = reinterpret_cast<const int32_t*>(params.seq_lens);
  const int32_t capacity = table_capacity(params);
  const int32_t items = row_tiles(rule, params.q_len, params.heads);  // of a request
  const auto tiles_of = [&](int32_t seq_len) { return item_tiles(rule, max(seq_len, 0), capacity); };
  const int per_lane = (params.batch + 31) / 32;
  const int first = min(lane * per_lane, params.batch);
  const int last = min(first + per_lane, params.batch);
  int units = 0, least = 0x7fffffff, most = 0;  // of one item of each request
#pragma unroll 1
  for (int b = first; b < last; ++b) {
    const int next = item_units(rule, tiles_of(seq_lens[b]));
    units += next;
    least = min(least, next);
    most = max(most, next);
  }
  MLA_MARK(kLengthsRead);
  least = __reduce_min_sync(0xffffffff, least);
  most = __reduce_max_sync(0xffffffff, most);
  units *= items;
  int inclusive = units;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffff, inclusive, d);
    if (lane >= d) inclusive += other;
  }
  const Line line =
      cut_line(rule, __shfl_sync(0xffffffff, inclusive, 31), least == most ? least : 0, workers);
  if (lane == 0) queue.line = line;
  MLA_MARK(kLineCut);
  QueueWriter<Queue> writer{queue, lane};
  if (worker < line.workers) {
    const int begin = share_begin(worker, line.length, line.workers),
              end = share_begin(worker + 1, line.length, line.workers);
    // The lane in whose range of requests this worker begins walks on to its request.
    int b = first, item_begin = inclusive - units, each = 0;
    const bool mine = item_begin <= begin && begin < inclusive;
    if (mine) {
#pragma unroll 1
      for (;; ++b) {
        each = item_units(rule, tiles_of(seq_lens[b]));
        const int next = item_begin + items * each;
        if (next > begin) break;
        item_begin = next;
      }
    }
    const uint32_t holder = __ballot_sync(0xffffffff, mine);
    const int source = __ffs(holder) - 1;
    int32_t row_tile = 0;
    if (holder != 0) {
      b = __shfl_sync(0xffffffff, b, source);
      item_begin = __shfl_sync(0xffffffff, item_begin, source);
      each = __shfl_sync(0xffffffff, each, source);
      row_tile = (begin - item_begin) / each;
      item_begin += row_tile * each;
    } else {  // nothing begins here: in the gap behind the last item
      b = params.batch;
    }
    MLA_MARK(kShareFound);
    const int32_t max_splits = ready ? params.max_splits : 1;
#pragma unroll 1
    for (; b < params.batch && item_begin < end; ++b, row_tile = 0) {
      const int32_t seq_len = seq_lens[b];
      const int32_t tiles = tiles_of(seq_len);
      const int32_t granularity = split_granularity(tiles, max_splits);
#pragma unroll 1
      for (; row_tile < items && item_begin < end; ++row_tile) {
        const int32_t first_tile = cut_tile(begin - item_begin, tiles, granularity);
        const int32_t last_tile = cut_tile(end - item_begin, tiles, granularity);
        if (tiles == 0 ? item_begin >= begin : first_tile < last_tile) {
          Item item;
          item.request = b;
          item.first_query = b * params.q_len;
          item.count = static_cast<uint16_t>(params.q_len);
          item.first_row = static_cast<uint16_t>(row_tile * rule.rows);
          item.seq_len = seq_len;
          item.visible_first = item.visible = max(seq_len, 0);
          item.item_begin = item_begin;
          item.first_tile = first_tile;
          item.last_tile = last_tile;
          item.tiles = tiles;
          writer.put([&](Item& to) { to = item; });
          MLA_MARK(kItemPut);
          if (tiles > 0 && !item.whole()) on_split(line, item);
        }
        item_begin += item_units(rule, tiles);
      }
    }
  }
  writer.put([](Item& item) { item.request = -1; });
}

// Executed by the scheduler warp. An item of whose tiles this worker has none is passed over. The warp calls
// on_split(line, item) behind each item that this worker shares with others.
template <class Queue, class Split>
__device__ __forceinline__ void schedule(const ScheduleRule& rule, const DecodeParams& params, Queue& queue,
                                         int worker, int workers, int lane, const Split& on_split) {
  const bool ready = workspace_ready(params);
  const Share share = find_share(rule, params, worker, workers, lane);
  const int32_t capacity = table_capacity(params);
  const int32_t max_splits = ready ? params.max_splits : 1;
  if (lane == 0) queue.line = share.line;
  QueueWriter<Queue> writer{queue, lane};
  int32_t item_begin = share.item_begin;
  int32_t row_tile = share.row_tile;
#pragma unroll 1
  for (int b = share.request; b < params.batch && item_begin < share.end; ++b, row_tile = 0) {
    const Request request = load_request(params, b);
    const int32_t count = row_tiles(rule, request.count, params.heads);
#pragma unroll 1
    for (; row_tile < count && item_begin < share.end; ++row_tile) {
      const bool same = alike(params, request);
      const int32_t visible =
          same ? visible_tokens(params, request, 0) : item_visible(rule, params, request, row_tile);
      const int32_t tiles = item_tiles(rule, visible, capacity);
      const int32_t granularity = split_granularity(tiles, max_splits);
      const int32_t first_tile = cut_tile(share.begin - item_begin, tiles, granularity);
      const int32_t last_tile = cut_tile(share.end - item_begin, tiles, granularity);
      if (tiles == 0 ? item_begin >= share.begin : first_tile < last_tile) {
        // The values are worked out in the one lane, not kept in registers.
        writer.put([&](Item& item) {
          item.request = b;
          item.first_query = request.first_query;
          item.count = static_cast<uint16_t>(request.count);
          item.seq_len = request.seq_len;
          item.first_row = static_cast<uint16_t>(row_tile * rule.rows);
          item.visible_first =
              same ? visible : visible_tokens(params, request, first_token_of(rule, row_tile, params.heads));
          item.visible = visible;
          item.item_begin = item_begin;
          item.first_tile = first_tile;
          item.last_tile = last_tile;
          item.tiles = tiles;
        });
        if (tiles > 0 && (first_tile > 0 || last_tile < tiles)) {
          Item item;
          item.item_begin = item_begin;
          item.tiles = tiles;
          on_split(share.line, item);
        }
      }
      item_begin += item_units(rule, tiles);
    }
  }
  writer.put([](Item& item) { item.request = -1; });
}

template <class Queue>
__device__ __forceinline__ void schedule(const ScheduleRule& rule, const DecodeParams& params, Queue& queue,
                                         int worker, int workers, int lane) {
  schedule(rule, params, queue, worker, workers, lane, [](const Line&, const Item&) {});
}

// ---- rows --------------------------------------------------------------------------------------

// Rows of an item's row tile.
__device__ __forceinline__ int rows_of(const ScheduleRule& rule, const DecodeParams& params,
                                       const Item& item) {
  return min(rule.rows, item.count * params.heads - item.first_row);
}

// Which query token and head a row of a row tile is.
struct RowPlace {
  int32_t token;  // within the request
  int32_t head;
};

__device__ __forceinline__ RowPlace place_of(const DecodeParams& params, const Item& item, int row) {
  const int32_t r = item.first_row + row;
  const int32_t token = r / params.heads;
  return {token, r - token * params.heads};
}

// Tokens that a query token of the item's request sees.
__device__ __forceinline__ int visible_to(const DecodeParams& params, const Item& item, int token) {
  return visible_tokens(params, Request{item.seq_len, item.first_query, item.count}, token);
}

}  // namespace mla
