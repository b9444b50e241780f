// SPDX-License-Identifier: Apache-2.0
//
// Points that a timeline of a launch is made of (bench/timeline). In a kernel of the bundle they are nothing.
#pragma once

#define MLA_MARKS(X)                                                           \
  X(kStart, "the CTA starts")                                                  \
  X(kReady, "barriers are initialised")                                        \
  X(kLengthsRead, "lengths of the requests are read")                          \
  X(kLineCut, "shares are known")                                              \
  X(kShareFound, "the first request of the share is found")                    \
  X(kItemPut, "an item is handed out")                                         \
  X(kItemTaken, "an item has arrived")                                         \
  X(kTileAsked, "the copies of a tile are under way")                          \
  X(kQueriesLoaded, "Q is in shared memory")                                   \
  X(kPair, "a pair of tiles begins")                                           \
  X(kTileThere, "its own tile has come")                                       \
  X(kScores, "scores are computed")                                            \
  X(kWeights, "P is in shared memory")                                         \
  X(kAgreed, "all have P")                                                     \
  X(kProducts, "products begin")                                               \
  X(kPairDone, "products are added")                                           \
  X(kTilesDone, "all tiles of a piece")                                        \
  X(kPublished, "a piece is published")                                        \
  X(kSliceTaken, "all pieces are there, and a slice of them is this worker's") \
  X(kSlicesWeighed, "weights of the splits")                                   \
  X(kMerged, "no slice is left")                                               \
  X(kEnd, "the warp ends")

#ifndef MLA_MARK
#define MLA_MARK(point)
#endif
