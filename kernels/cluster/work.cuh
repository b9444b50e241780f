// SPDX-License-Identifier: Apache-2.0
//
// The device side of mla_schedule.h: this worker's share, and a walk over the items in it. Every
// role of a cluster walks the same items, so no work list is stored.
#pragma once

#include "kernels/cluster/config.cuh"
#include "kernels/common/mla_schedule.h"

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

// Walks the items of a share: `for (ItemWalk item(...); item.valid(); item.next())`. Items whose
// piece is empty are passed over. Holds little, because it lives in registers through the main
// loops; what is cheap to compute again is.
struct ItemWalk {
  const DecodeParams& params;
  const Share& share;
  int request;
  int token;
  int item_begin;  // on the line of units
  int visible;     // tokens that this query token sees
  int last_tile;   // this worker's piece of the item: first_tile() ... last_tile - 1

  __device__ __forceinline__ ItemWalk(const DecodeParams& p, const Share& s)
      : params(p), share(s), request(s.request), token(s.token), item_begin(s.item_begin) {
    if (valid()) {
      enter();
      if (first_tile() == last_tile) next();
    }
  }

  __device__ __forceinline__ bool valid() const { return item_begin < share.end; }

  __device__ __forceinline__ void next() {
    do {
      item_begin += item_units(visible);
      if (++token == params.q_len) {
        token = 0;
        ++request;
      }
      if (!valid()) return;
      enter();
    } while (first_tile() == last_tile);
  }

  __device__ __forceinline__ int tiles() const { return item_tiles(visible); }
  __device__ __forceinline__ int first_tile() const { return cut_at(share.begin); }
  __device__ __forceinline__ bool whole() const { return first_tile() == 0 && last_tile == tiles(); }

  // Row of this query token in q, out and lse, in units of heads.
  __device__ __forceinline__ int64_t query() const {
    return static_cast<int64_t>(request) * params.q_len + token;
  }

  // Tile at which the share of worker c cuts this item.
  __device__ __forceinline__ int cut(int c) const {
    return cut_at(share_begin(c, share.length, share.workers));
  }

 private:
  __device__ __forceinline__ int cut_at(int unit) const {
    return cut_tile(unit - item_begin, tiles(), split_granularity(tiles(), params.max_splits));
  }
  __device__ __forceinline__ void enter() {
    visible = visible_tokens(load_seq_len(params, request), capacity(params), params.q_len, token);
    last_tile = cut_at(share.end);
  }
};

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

__device__ __forceinline__ Chunk load_chunk(const ItemWalk& item, int tile, int chunk) {
  const DecodeParams& params = item.params;
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
