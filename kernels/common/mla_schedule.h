// SPDX-License-Identifier: Apache-2.0
//
// How a persistent launch divides the KV tiles of a batch among its workers (a worker is a cluster
// or a CTA, as the family has it). Every worker computes its share from seq_lens on the device, so
// there is no planning kernel and a captured graph stays right when seq_lens change. The same code
// runs on the host, where the tests use it to know the splits.
//
// The rows of a request are its (query token, head) pairs, token-major: row r is head r % heads of
// query token r / heads. An item is a request's row tile: rows [i * R, (i + 1) * R). It reads what
// its last query token sees; each row masks by its own bound. A request without query tokens has no
// items.
//
// The items stand one after another on a line, in order of request and row tile. An item of n > 0
// tiles occupies n + item_overhead units: its tiles, then a gap that stands for the cost of loading
// Q and writing the result. One that reads nothing occupies a single unit, in which its rows are
// written. The line is cut into equal shares, one a worker; a boundary that falls into the tiles of
// an item splits it. Units are int: a launch has less than 2^31 of them (the loader checks batch *
// row tiles * units of the longest item against it).
#pragma once

#include <cstdint>

#include "kernels/common/mla_params.h"

namespace mla {

// What a family brings: the constants of its cubins, which the manifest repeats.
struct ScheduleRule {      // in device code: returned by a function (a constant has no address there)
  int32_t rows;            // of a row tile
  int32_t tile_tokens;     // tokens of a KV tile
  int32_t item_overhead;   // cost of beginning and ending an item, in tiles
  int32_t min_share;       // fewest units worth a worker of their own: below it a split costs more in
                           // merging than it saves
  int32_t max_flat_merge;  // so many splits are merged by one worker at once; more go through groups
};

// What device memory says of a request, bounded.
struct Request {
  int32_t seq_len;      // as it stands in seq_lens
  int32_t first_query;  // its first query token, a row of q, out and lse
  int32_t count;        // query tokens, 0 ... q_len
};

// Tokens that a row of the page table can hold.
MLA_HD constexpr int32_t table_capacity(const DecodeParams& params) {
  const int64_t tokens = static_cast<int64_t>(params.max_pages_per_seq) * params.page_size;
  return tokens < 0x7fffffff ? static_cast<int32_t>(tokens) : 0x7fffffff;
}

// Request b whose query tokens are [begin, end) by q_offsets. Offsets that cannot be right are
// bounded: no request begins after the query tokens that the ones before it can have.
MLA_HD constexpr Request ragged_request(const DecodeParams& params, int32_t b, int32_t seq_len, int32_t begin,
                                        int32_t end) {
  const int64_t most_begin = static_cast<int64_t>(b) * params.q_len;
  const int64_t first = begin < 0 ? 0 : begin < most_begin ? begin : most_begin;
  const int64_t count = static_cast<int64_t>(end) - first;
  return {seq_len, static_cast<int32_t>(first),
          static_cast<int32_t>(count < 0              ? 0
                               : count < params.q_len ? count
                                                      : params.q_len)};
}

MLA_HD constexpr int32_t row_tiles(const ScheduleRule& rule, int32_t count, int32_t heads) {
  return (count * heads + rule.rows - 1) / rule.rows;
}

// Tokens of this rank's pool that query token t sees. More than table_capacity(): those beyond it are
// masked like the tokens of a bad page.
MLA_HD constexpr int32_t visible_tokens(const DecodeParams& params, const Request& request, int32_t t) {
  return local_tokens(visible_positions(request.seq_len, request.count, t, params.causal), params.cp_rank,
                      params.cp_size, params.cp_interleave);
}

MLA_HD constexpr int32_t first_token_of(const ScheduleRule& rule, int32_t tile, int32_t heads) {
  return tile * rule.rows / heads;
}

MLA_HD constexpr int32_t last_token_of(const ScheduleRule& rule, int32_t tile, int32_t count, int32_t heads) {
  const int32_t rows = count * heads;
  const int32_t end = (tile + 1) * rule.rows;
  return ((end < rows ? end : rows) - 1) / heads;
}

// Visible tokens of an item: those of its last query token.
MLA_HD constexpr int32_t item_visible(const ScheduleRule& rule, const DecodeParams& params,
                                      const Request& request, int32_t tile) {
  return visible_tokens(params, request, last_token_of(rule, tile, request.count, params.heads));
}

// KV tiles of an item that sees `visible` tokens; 0: there is nothing to read.
MLA_HD constexpr int32_t item_tiles(const ScheduleRule& rule, int32_t visible, int32_t capacity) {
  const int32_t readable = visible < capacity ? visible : capacity;
  return readable / rule.tile_tokens + (readable % rule.tile_tokens != 0);
}

MLA_HD constexpr int32_t item_units(const ScheduleRule& rule, int32_t tiles) {
  return tiles > 0 ? tiles + rule.item_overhead : 1;
}

// Units of all items of a request.
MLA_HD constexpr int32_t request_units(const ScheduleRule& rule, const DecodeParams& params,
                                       const Request& request, int32_t capacity) {
  const int32_t count = row_tiles(rule, request.count, params.heads);
  int32_t units = 0;
  for (int32_t tile = 0; tile < count; ++tile) {
    units += item_units(rule, item_tiles(rule, item_visible(rule, params, request, tile), capacity));
  }
  return units;
}

// Workers that take part: each gets at least min_share units.
MLA_HD constexpr int32_t active_workers(const ScheduleRule& rule, int32_t length, int32_t workers) {
  const int32_t most = length / rule.min_share;
  return most < 1 ? 1 : (most < workers ? most : workers);
}

// First unit of worker c, 0 <= c <= workers. Shares differ by one unit at most, the larger ones
// first.
MLA_HD constexpr int32_t share_begin(int32_t c, int32_t length, int32_t workers) {
  const int32_t larger = length % workers;
  return c * (length / workers) + (c < larger ? c : larger);
}

// Worker in whose share `unit` lies, 0 <= unit < length.
MLA_HD constexpr int32_t worker_of(int32_t unit, int32_t length, int32_t workers) {
  const int32_t size = length / workers;
  const int32_t larger = length % workers;
  const int32_t in_larger = larger * (size + 1);
  return unit < in_larger ? unit / (size + 1) : larger + (unit - in_larger) / size;
}

// The line as it is cut.
struct Line {
  int32_t length;   // units
  int32_t workers;  // that take part
};

// Units of an item of a batch whose `items` items are all alike: those of request `request`, all of whose
// `count` items together have `units`; 0 if they are not.
MLA_HD constexpr int32_t units_of_each(const ScheduleRule& rule, const DecodeParams& params,
                                       const Request& request, int32_t units, int32_t capacity) {
  const int32_t count = row_tiles(rule, request.count, params.heads);
  if (count == 0) return 0;
  const int32_t last =
      item_units(rule, item_tiles(rule, item_visible(rule, params, request, count - 1), capacity));
  return static_cast<int64_t>(last) * count == units ? last : 0;  // no item has more than the last one
}

// Cuts the line into equal shares; or, where a batch of equal items (`each` units; 0: they differ) fills the
// workers nearly as well with whole items, into whole items: a split costs about kSplitCost overheads. The
// line then ends with a gap.
inline constexpr int32_t kSplitCost = 4;

MLA_HD constexpr Line cut_line(const ScheduleRule& rule, int32_t length, int32_t each, int32_t workers) {
  const int32_t active = active_workers(rule, length, workers);
  if (each > 0) {
    const int32_t items = length / each;
    const int32_t per_worker = items / workers + (items % workers != 0);
    const int64_t whole = static_cast<int64_t>(per_worker) * each;
    const int32_t needed = items / per_worker + (items % per_worker != 0);
    const int64_t share = length / active + (length % active != 0);
    if (items > workers / 2 && whole <= share + kSplitCost * rule.item_overhead &&
        whole * needed <= 0x7fffffff) {
      return {static_cast<int32_t>(whole * needed), needed};
    }
  }
  return {length, active};
}

// Splits begin at multiples of this many tiles, so that an item has at most max_splits of them
// (0 or less: no cap).
MLA_HD constexpr int32_t split_granularity(int32_t tiles, int32_t max_splits) {
  return max_splits > 0 && max_splits < tiles ? tiles / max_splits + (tiles % max_splits != 0) : 1;
}

// Tile at which a boundary `units` after the start of an item cuts it: 0 ... tiles.
MLA_HD constexpr int32_t cut_tile(int32_t units, int32_t tiles, int32_t granularity) {
  if (units <= 0) return 0;
  if (units >= tiles) return tiles;
  return granularity == 1 ? units : units / granularity * granularity;
}

// The workspace slot of worker c for an item that it shares: the item it starts in the middle of, or
// the item it leaves unfinished. So two slots a worker hold all partial results, whatever the batch.
MLA_HD constexpr int32_t partial_slot(int32_t c, bool starts_item) { return 2 * c + (starts_item ? 1 : 0); }

// Splits merged by one worker at a time. Two levels of about sqrt(splits) each keep the longest
// chain short when one sequence is spread over the whole device.
MLA_HD constexpr int32_t merge_group_size(const ScheduleRule& rule, int32_t splits) {
  if (splits <= rule.max_flat_merge) return splits;
  int32_t size = 1;
  while (size * size < splits) ++size;
  return size;
}

}  // namespace mla
