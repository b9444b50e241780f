// SPDX-License-Identifier: Apache-2.0
//
// How a persistent launch divides the KV tiles of a batch among its workers (a worker is a cluster
// of the cluster family, or a CTA). Every worker computes its share from seq_lens on the device, so
// there is no planning kernel and a captured graph stays right when seq_lens change. The same code
// runs on the host, where the tests use it to know the splits.
//
// The items (one per query token, in order of request and token) stand one after another on a line.
// An item of n tiles occupies n + kItemOverhead units: its tiles, then a gap that stands for the
// cost of loading Q and writing the result. The line is cut into equal shares, one a worker; a
// boundary that falls into an item splits it. Units are int: a launch has less than 2^31 of them
// (the loader checks batch * q_len * tiles against it).
#pragma once

#include <cstdint>

#include "kernels/common/mla_params.h"

namespace mla {

// Cost of beginning and ending an item, in tiles.
inline constexpr int kItemOverhead = 2;
// Fewest units worth a worker of their own: below it a split costs more in merging than it saves.
inline constexpr int kMinShare = 4;
// Up to this many splits are merged by one worker at once; more go through groups (merge_group_size).
inline constexpr int kMaxFlatMerge = 8;

// Visible tokens of query token t of a request; seq_len is first bounded by what the page table can
// hold.
MLA_HD constexpr int visible_tokens(int seq_len, int capacity, int q_len, int t) {
  const int bounded = seq_len > capacity ? capacity : seq_len;
  const int visible = bounded - (q_len - 1) + t;
  return visible > 0 ? visible : 0;
}

// Tiles of an item. One that sees no token still has a tile (all masked), which writes its result.
MLA_HD constexpr int item_tiles(int visible) {
  return visible > 0 ? (visible + kTileTokens - 1) / kTileTokens : 1;
}

MLA_HD constexpr int item_units(int visible) { return item_tiles(visible) + kItemOverhead; }

// Workers that take part: each gets at least kMinShare units.
MLA_HD constexpr int active_workers(int length, int workers) {
  const int most = length / kMinShare;
  return most < 1 ? 1 : (most < workers ? most : workers);
}

// First unit of worker c, 0 <= c <= workers. Shares differ by one unit at most, the larger ones
// first.
MLA_HD constexpr int share_begin(int c, int length, int workers) {
  const int larger = length % workers;
  return c * (length / workers) + (c < larger ? c : larger);
}

// Worker in whose share `unit` lies, 0 <= unit < length.
MLA_HD constexpr int worker_of(int unit, int length, int workers) {
  const int size = length / workers;
  const int larger = length % workers;
  const int in_larger = larger * (size + 1);
  return unit < in_larger ? unit / (size + 1) : larger + (unit - in_larger) / size;
}

// Splits begin at multiples of this many tiles, so that an item has at most max_splits of them.
MLA_HD constexpr int split_granularity(int tiles, int max_splits) {
  return max_splits > 0 ? (tiles + max_splits - 1) / max_splits : 1;
}

// Tile at which a boundary `units` after the start of an item cuts it: 0 ... tiles.
MLA_HD constexpr int cut_tile(int units, int tiles, int granularity) {
  if (units <= 0) return 0;
  if (units >= tiles) return tiles;
  return units / granularity * granularity;
}

// The workspace slot of worker c for an item that it shares: the item it starts in the middle of, or
// the item it leaves unfinished.
MLA_HD constexpr int partial_slot(int c, bool starts_item) { return 2 * c + (starts_item ? 1 : 0); }

// Splits merged by one worker at a time. Two levels of about sqrt(splits) each keep the longest
// chain short when one sequence is spread over the whole device.
MLA_HD constexpr int merge_group_size(int splits) {
  if (splits <= kMaxFlatMerge) return splits;
  int size = 1;
  while (size * size < splits) ++size;
  return size;
}

}  // namespace mla
