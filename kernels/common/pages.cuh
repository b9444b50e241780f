// SPDX-License-Identifier: Apache-2.0
//
// Pages of a tile. A tile is loaded in chunks of 2^box_tokens_log2 tokens, which divides the page
// size and the tile: a chunk lies in one page.
#pragma once

#include "kernels/common/work.cuh"

namespace mla {

struct Chunk {
  int page;  // -1: nothing to read there (past the visible tokens, or a bad page id); fills with zero
  int row;   // first token of the chunk within its page
  bool bad;  // visible tokens that are masked: page id outside the pool, or beyond the page table
};

// `chunk` of a tile that begins at token `tile_begin` of the item.
__device__ __forceinline__ Chunk load_chunk(const DecodeParams& params, const Item& item, int tile_begin,
                                            int chunk) {
  const int token = tile_begin + (chunk << params.box_tokens_log2);
  const int index = page_of(token, params.page_magic, params.page_shift);
  Chunk c{-1, token - index * params.page_size, false};
  if (token < item.visible) {
    c.bad = true;
    if (index < params.max_pages_per_seq) {
      const int32_t* row =
          reinterpret_cast<const int32_t*>(params.page_table) + item.request * params.page_table_stride;
      const int page = row[index];
      c.bad = page < 0 || page >= params.pages;
      if (!c.bad) c.page = page;
    }
  }
  return c;
}

// The same for a warp that reads single tokens: the page, or -1.
__device__ __forceinline__ int load_page(const DecodeParams& params, const Item& item, int token) {
  const int index = page_of(token, params.page_magic, params.page_shift);
  if (token >= item.visible || index >= params.max_pages_per_seq) return -1;
  const int page =
      reinterpret_cast<const int32_t*>(params.page_table)[item.request * params.page_table_stride + index];
  return page >= 0 && page < params.pages ? page : -1;
}

// Visible tokens beyond the page table lie in no chunk of any tile when they begin with a tile: the
// counter must tell of them all the same.
__device__ __forceinline__ bool beyond_table(const DecodeParams& params, const Item& item) {
  return item.visible > table_capacity(params);
}

__device__ __forceinline__ void count_bad(const DecodeParams& params, uint32_t bad) {
  if (bad != 0 && params.bad_page_counter != 0) {
    atomicAdd(reinterpret_cast<unsigned int*>(params.bad_page_counter), bad);
  }
}

}  // namespace mla
