// SPDX-License-Identifier: Apache-2.0
//
// Picks the instance of a handler template for a type: MLA_PICK(t, (alu<add<X>, X, X, X>)) names the
// template's parameter X. nullptr for a type that has none.
#pragma once

#include "tests/emulator/engine/decoder.h"

#define MLA_PICK(t, handler) \
  [&]() -> Handler {         \
    switch (t) {             \
      case T::kU16: {        \
        using X = uint16_t;  \
        return handler;      \
      }                      \
      case T::kS16: {        \
        using X = int16_t;   \
        return handler;      \
      }                      \
      case T::kU32: {        \
        using X = uint32_t;  \
        return handler;      \
      }                      \
      case T::kS32: {        \
        using X = int32_t;   \
        return handler;      \
      }                      \
      case T::kU64: {        \
        using X = uint64_t;  \
        return handler;      \
      }                      \
      case T::kS64: {        \
        using X = int64_t;   \
        return handler;      \
      }                      \
      default:               \
        return nullptr;      \
    }                        \
  }()

#define MLA_PICK_BITS(t, handler) \
  [&]() -> Handler {              \
    switch (bits_of(t)) {         \
      case 16: {                  \
        using X = uint16_t;       \
        return handler;           \
      }                           \
      case 32: {                  \
        using X = uint32_t;       \
        return handler;           \
      }                           \
      case 64: {                  \
        using X = uint64_t;       \
        return handler;           \
      }                           \
      default:                    \
        return nullptr;           \
    }                             \
  }()
