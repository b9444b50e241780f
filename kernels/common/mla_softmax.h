// SPDX-License-Identifier: Apache-2.0
//
// The reference of a row: what its weights are quantised against, in units of log2. The weight of a
// token with score s is e4m3(448 * 2^(s - reference)); what was summed before is brought to the new
// reference with a factor.
//
// A running maximum alone loses everything but the token that dominates a sequence (an attention
// sink): all others fall below the least e4m3 number. So the reference follows the tiles' maxima down
// as well as up, and a tile in which a token dominates the others is multiplied in two parts. Plain
// C++: kernels and the tests' model share it.
#pragma once

#include "kernels/common/mla_params.h"

namespace mla {

// The reference falls to a tile's maximum that lies so much or more below it. (Less costs no more
// than as many of the 15 powers of two that e4m3 has.)
inline constexpr float kReferenceFall = 4.0f;
// It stays so close to the row's maximum: sums relative to it are then at most 2^64 * 448 * 448 times
// the tokens, which a float holds.
inline constexpr float kReferenceDrift = 64.0f;
// The first part of a tile: tokens this close to its maximum; the others may be a second.
inline constexpr float kFirstPart = 14.0f;
// They are one if the largest of them is no more than this below the largest score before the tile.
inline constexpr float kSecondPart = 8.0f;

template <class T>
struct RowReference {
  T value;  // -infinity: no token yet
  T most;   // largest score so far
};

// After tokens whose largest score is `most`; -infinity or NaN: there is none.
template <class T>
MLA_HD constexpr RowReference<T> next_reference(RowReference<T> before, T most) {
  RowReference<T> next = before;
  if (most > next.most) next.most = most;
  if (most > before.value) {
    next.value = most;
  } else if (most <= before.value - T{kReferenceFall}) {
    const T least = next.most - T{kReferenceDrift};
    const T fallen = most > least ? most : least;
    // No tokens are no reason to fall.
    if (most - most == T{0} && fallen < before.value) next.value = fallen;
  }
  return next;
}

// Whether a tile goes in two parts for a row: first the tokens with s >= most - kFirstPart, where
// `most` is its maximum, then the others, the largest of which is `rest`. That is where a token
// dominates all before it and its tile: the others of the tile count as much as what came before.
// Where they are small beside that, or a token as large was there already, they go with the first
// part and are lost; tiles of that kind are common where scores spread wide (a second part in every
// one of them would take half as long again).
template <class T>
MLA_HD constexpr bool needs_second_part(RowReference<T> before, T rest) {
  return rest > before.most - T{kSecondPart};
}

}  // namespace mla
