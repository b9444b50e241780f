// SPDX-License-Identifier: Apache-2.0
//
// Partial results of split items and their merge, for any family: where they lie, who takes part in
// an item, who merges. How a worker stores and reads its accumulator is its own business.
//
// Two ways to merge: by the last arriver alone (merge_item), or by all workers of the item that have nothing
// else to do (merge_together).
//
//   WorkspaceHeader                                          \ zeroed_bytes, the same for every
//   uint32 counters[kLevels][2 * kMaxWorkers][kValueParts]   / number of workers; zero between launches
//
//   at `partials`, for each slot and part of the value columns:
//   float4 row_state[kRows]                                  as the family has it; x: reference (log2)
//   float4 acc      [kAccWords][kMathThreads]                unnormalised output
#pragma once

#include "kernels/common/ptx/barrier.cuh"
#include "kernels/common/work.cuh"

namespace mla {

// kMaxWorkers   most workers of a launch
// kValueParts   parts of the value columns whose CTAs merge by themselves
// kRows         rows of a row tile
// kMathThreads  threads of a part that hold accumulators
// kAccWords     float4 of accumulators that each of them holds
template <int kMaxWorkers_, int kValueParts_, int kRows_, int kMathThreads_, int kAccWords_>
struct PartialLayout {
  static constexpr int kMaxWorkers = kMaxWorkers_;
  static constexpr int kValueParts = kValueParts_;
  static constexpr int kRows = kRows_;
  static constexpr int kMathThreads = kMathThreads_;
  static constexpr int kAccWords = kAccWords_;
  static constexpr int kLevels = 2;  // arrivals within a merge group and of groups; or arrivals and slices

  static constexpr int kSlots = 2 * kMaxWorkers;  // partial_slot
  static constexpr int64_t kPartWords = kRows + int64_t{kAccWords} * kMathThreads;
  static constexpr uint32_t kZeroedBytes = static_cast<uint32_t>(
      align_up(sizeof(WorkspaceHeader) + sizeof(uint32_t) * kLevels * kSlots * kValueParts, kWorkspaceAlign));
  static constexpr uint32_t kBytesPerWorker =
      static_cast<uint32_t>(2 * kValueParts * kPartWords * sizeof(float4));

  static __device__ __forceinline__ uint32_t* counter(const DecodeParams& params, int level, int slot,
                                                      int part) {
    return reinterpret_cast<uint32_t*>(params.workspace + sizeof(WorkspaceHeader)) +
           (level * kSlots + slot) * kValueParts + part;
  }
  static __device__ __forceinline__ float4* row_state(const DecodeParams& params, int slot, int part) {
    return reinterpret_cast<float4*>(params.partials) + (slot * kValueParts + part) * kPartWords;
  }
  // Word w of math thread t is acc()[w * kMathThreads + t].
  static __device__ __forceinline__ float4* acc(const DecodeParams& params, int slot, int part) {
    return row_state(params, slot, part) + kRows;
  }
};

// The workers that have a piece of an item, in the order of its tiles: bits, counted from the first.
// (A list of 16-bit numbers would take 1 KiB, which the cluster family does not have.)
template <int kMaxWorkers>
struct SplitList {
  static_assert(kMaxWorkers % 32 == 0, "whole words of bits");
  int32_t first_worker;
  int32_t splits;
  int32_t candidates;  // workers from the first to the last; splits where each has a piece
  int32_t unused;
  uint32_t has_piece[kMaxWorkers / 32];
  int32_t last_arriver;  // not written with the list: warps that are behind may still read it

  // Executed by one warp.
  __device__ __forceinline__ void fill(const DecodeParams& params, const Line& line, const Item& item,
                                       int lane) {
    const int first = worker_of(item.item_begin, line.length, line.workers);
    const int last = worker_of(item.item_begin + item.tiles - 1, line.length, line.workers);
    const int granularity = split_granularity(item.tiles, params.max_splits);
    int count = 0;
    for (int base = 0; base <= last - first; base += 32) {
      const int c = first + base + lane;
      bool piece = c <= last;
      if (piece) {
        const int begin = share_begin(c, line.length, line.workers) - item.item_begin;
        const int end = share_begin(c + 1, line.length, line.workers) - item.item_begin;
        piece = cut_tile(begin, item.tiles, granularity) < cut_tile(end, item.tiles, granularity);
      }
      const uint32_t ballot = __ballot_sync(0xffffffff, piece);
      if (lane == 0) has_piece[base / 32] = ballot;
      count += __popc(ballot);
    }
    if (lane == 0) {
      first_worker = first;
      candidates = last - first + 1;
      splits = count;
      unused = 0;  // the compiler reads it together with its neighbours
    }
  }

  // Number of the split that `worker` has.
  __device__ __forceinline__ int split_of(int worker) const {
    const int bit = worker - first_worker;
    if (splits == candidates) return bit;
    int split = __popc(has_piece[bit / 32] & ((1u << (bit % 32)) - 1));
    for (int w = 0; w < bit / 32; ++w) split += __popc(has_piece[w]);
    return split;
  }

  __device__ __forceinline__ int worker_of_split(int split) const {
    if (splits == candidates) return first_worker + split;
    int word = 0;
    for (int n; n = __popc(has_piece[word]), split >= n; ++word) split -= n;
    uint32_t bits = has_piece[word];
    for (; split > 0; --split) bits &= bits - 1;
    return first_worker + word * 32 + __ffs(bits) - 1;
  }

  // Only the first split starts the item.
  __device__ __forceinline__ int slot(int split) const {
    return partial_slot(worker_of_split(split), split == 0);
  }
};

// Partial results to be summed, in this order.
template <class List>
struct PartialSlots {
  const List& list;
  const int first;
  const int count;
  const int stride;

  __device__ __forceinline__ int operator[](int i) const { return list.slot(first + i * stride); }
};

// Counts a CTA in; true in all its math threads if it is the last of `arrivals`. What the others
// wrote before they arrived is then visible here. `sync` is a barrier of the math threads.
template <class Sync>
__device__ __forceinline__ bool arrive_last(uint32_t* counter, int arrivals, bool leader, int32_t* flag,
                                            const Sync& sync) {
  sync();
  if (leader) {
    const bool last = ptx::arrive_gpu(counter) == static_cast<uint32_t>(arrivals - 1);
    if (last) *counter = 0;  // ready for the next launch
    *flag = last;
  }
  sync();
  return *flag != 0;
}

// Publishes this worker's piece of a split item. Returns true, in all math threads of this CTA, if it
// was the last to arrive: it then holds the merged result of the whole item. Splits are summed in the
// order of their tiles, within groups and then over groups, whoever arrives last.
//
// Called by all math threads of a value part, which have between them:
//   worker.thread()                number among them
//   worker.sync()                  a barrier
//   worker.store_partial(slot)     writes accumulators and row states to a slot of Layout
//   worker.load_merged(slots)      sums those of `count` slots: slots.count, slots[i]
template <class Layout, class Worker>
__device__ __forceinline__ bool merge_item(const ScheduleRule& rule, const DecodeParams& params,
                                           Worker& worker, SplitList<Layout::kMaxWorkers>& list,
                                           const Line& line, const Item& item, int worker_id, int part) {
  const auto sync = [&] { worker.sync(); };
  if (worker.thread() < 32) list.fill(params, line, item, worker.thread());
  sync();
  const int splits = list.splits;
  const int group_size = merge_group_size(rule, splits);
  const int groups = (splits + group_size - 1) / group_size;
  int first = list.split_of(worker_id);
  int slot = list.slot(first);
  first = first / group_size * group_size;
  int count = min(group_size, splits - first);
  int stride = 1;
  for (int level = 0;; ++level) {
    worker.store_partial(slot);
    slot = list.slot(first);
    if (!arrive_last(Layout::counter(params, level, slot, part), count, worker.thread() == 0,
                     &list.last_arriver, sync)) {
      return false;
    }
    worker.load_merged(PartialSlots<SplitList<Layout::kMaxWorkers>>{list, first, count, stride});
    if (level == 1 || groups == 1) return true;
    // The group's result goes to the slot of its first split. Every thread must have read the row
    // states there before.
    sync();
    first = 0;
    count = groups;
    stride = group_size;
  }
}

// ---- merged together ---------------------------------------------------------------------------

// Slices of a merged item: about as many as splits, a power of two, at most most_slices.
__device__ __forceinline__ int merge_slices(int splits, int most_slices) {
  int slices = 1;
  while (2 * slices <= splits && slices < most_slices) slices *= 2;
  return slices;
}

// Takes slices of an item whose `splits` workers have arrived, and counts out those that find none left or
// do not wait. Every worker is counted out once; the last of them clears the counters for the next launch.
// `taken` counts slices and, beyond them, workers that found none; its upper half those that did not wait.
struct SliceCounter {
  uint32_t* arrived;
  uint32_t* taken;
  uint32_t splits;
  uint32_t slices;

  // A slice, or -1: there is none left.
  __device__ __forceinline__ int take() const {
    const uint32_t old = ptx::add_gpu(taken, 1);
    const uint32_t number = old & 0xffff;
    if (number < slices) return static_cast<int>(number);
    count_out(number + 1 - slices + (old >> 16));
    return -1;
  }
  __device__ __forceinline__ void leave() const {
    const uint32_t old = ptx::add_gpu(taken, 0x10000);
    const uint32_t number = old & 0xffff;
    count_out((number > slices ? number - slices : 0) + (old >> 16) + 1);
  }
  __device__ __forceinline__ void count_out(uint32_t out) const {
    if (out != splits) return;
    ptx::store_gpu(arrived, 0);
    ptx::store_gpu(taken, 0);
  }
};

// Times that a worker looks whether the others have arrived, before it leaves its slices to them. Workers of
// a launch end at about the same time. That all are resident is not needed: one that the device has not yet
// begun finds the item complete, or leaves it to a later one.
inline constexpr int kMergePolls = 512;

// The splits of an item, in the order of its tiles.
template <int kMaxWorkers>
struct SplitSlots {
  int32_t splits;
  int32_t own;    // number of this worker's
  int32_t slice;  // to be merged; -1: none
  int32_t unused;
  uint16_t slot[kMaxWorkers];

  // Executed by one warp.
  __device__ __forceinline__ void fill(const DecodeParams& params, const Line& line, const Item& item,
                                       int worker, int lane) {
    const int first = worker_of(item.item_begin, line.length, line.workers);
    const int last = worker_of(item.item_begin + item.tiles - 1, line.length, line.workers);
    const int granularity = split_granularity(item.tiles, params.max_splits);
    int count = 0;
#pragma unroll 1
    for (int base = first; base <= last; base += 32) {
      const int c = base + lane;
      bool piece = c <= last;
      if (piece) {
        const int begin = share_begin(c, line.length, line.workers) - item.item_begin;
        const int end = share_begin(c + 1, line.length, line.workers) - item.item_begin;
        piece = cut_tile(begin, item.tiles, granularity) < cut_tile(end, item.tiles, granularity);
      }
      const uint32_t ballot = __ballot_sync(0xffffffff, piece);
      const int number = count + __popc(ballot & ((1u << lane) - 1));
      if (piece) {
        slot[number] = static_cast<uint16_t>(partial_slot(c, number == 0));  // only the first starts the item
        if (c == worker) own = number;
      }
      count += __popc(ballot);
    }
    if (lane == 0) splits = count;
  }
};

// Publishes this worker's piece of a split item: all pieces first, then all merges (merge_together). `slots`
// are the item's. Returns the pieces that have arrived, in thread 0: all, if this one was the
// last.
//
// Called by all math threads of a value part, which have between them thread(), sync(),
//   worker.store_partial(slot)   writes accumulators and row states to a slot of Layout
template <class Layout, class Worker>
__device__ __forceinline__ uint32_t publish_piece(const DecodeParams& params, Worker& worker,
                                                  const SplitSlots<Layout::kMaxWorkers>& slots, int part) {
  worker.store_partial(slots.slot[slots.own]);
  worker.sync();
  return worker.thread() == 0 ? ptx::arrive_gpu(Layout::counter(params, 0, slots.slot[0], part)) + 1 : 0;
}

// Merges an item of which this worker has published a piece, results included: in slices, with the other
// workers of the item that wait for it. Each slice is summed in the same order whoever takes it. `arrived`
// pieces were there when thread 0 last looked.
//
//   worker.merge_slice(slots, slice, slices)   merges a slice and writes its results
template <class Layout, class Worker>
__device__ __forceinline__ void merge_together(const DecodeParams& params, Worker& worker,
                                               SplitSlots<Layout::kMaxWorkers>& slots, uint32_t arrived,
                                               int part, int most_slices) {
  const int slices = merge_slices(slots.splits, most_slices);
  const SliceCounter counter{Layout::counter(params, 0, slots.slot[0], part),
                             Layout::counter(params, 1, slots.slot[0], part),
                             static_cast<uint32_t>(slots.splits), static_cast<uint32_t>(slices)};
  if (worker.thread() == 0) {
#pragma unroll 1
    for (int i = 0; arrived < counter.splits && i < kMergePolls; ++i) {
      arrived = ptx::load_gpu(counter.arrived);
    }
    int slice = -1;
    if (arrived < counter.splits) {
      counter.leave();
    } else {
      slice = counter.take();
    }
    slots.slice = slice;
  }
  worker.sync();
#pragma unroll 1
  for (int slice; slice = slots.slice, slice >= 0;) {
    worker.merge_slice(slots, slice, slices);
    worker.sync();  // all have read slots.slice
    if (worker.thread() == 0) slots.slice = counter.take();
    worker.sync();
  }
}

}  // namespace mla
