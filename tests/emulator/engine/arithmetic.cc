// SPDX-License-Identifier: Apache-2.0
//
// Integer arithmetic, logic, comparison, selection and moves.
#include <bit>

#include "tests/emulator/engine/decoder.h"
#include "tests/emulator/engine/fp.h"

namespace mla::emu {

namespace {

// ---------------------------------------------------------------- integers

template <class X>
using U = std::make_unsigned_t<X>;

template <class X>
struct WideOf;
template <>
struct WideOf<uint16_t> {
  using type = uint32_t;
};
template <>
struct WideOf<int16_t> {
  using type = int32_t;
};
template <>
struct WideOf<uint32_t> {
  using type = uint64_t;
};
template <>
struct WideOf<int32_t> {
  using type = int64_t;
};
template <>
struct WideOf<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct WideOf<int64_t> {
  using type = __int128;
};
template <class X>
using Wide = typename WideOf<X>::type;

template <class X>
X add(X a, X b) {
  return static_cast<X>(static_cast<U<X>>(a) + static_cast<U<X>>(b));
}
template <class X>
X sub(X a, X b) {
  return static_cast<X>(static_cast<U<X>>(a) - static_cast<U<X>>(b));
}
template <class X>
X add_sat(X a, X b) {
  int64_t r = int64_t{a} + b;
  return static_cast<X>(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
}
template <class X>
X sub_sat(X a, X b) {
  int64_t r = int64_t{a} - b;
  return static_cast<X>(r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
}
template <class X>
X mul_lo(X a, X b) {
  return static_cast<X>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <class X>
X mul_hi(X a, X b) {
  return static_cast<X>((Wide<X>{a} * Wide<X>{b}) >> (8 * sizeof(X)));
}
template <class X>
Wide<X> mul_wide(X a, X b) {
  return Wide<X>{a} * Wide<X>{b};
}
template <class X>
X mad_lo(X a, X b, X c) {
  return add(mul_lo(a, b), c);
}
template <class X>
X mad_hi(X a, X b, X c) {
  return add(mul_hi(a, b), c);
}
template <class X>
Wide<X> mad_wide(X a, X b, Wide<X> c) {
  return add<Wide<X>>(mul_wide(a, b), c);
}
template <class X>
X div(X a, X b) {
  if (b == 0) return static_cast<X>(~U<X>{0});
  if constexpr (std::is_signed_v<X>) {
    if (b == -1) return sub<X>(0, a);
  }
  return static_cast<X>(a / b);
}
template <class X>
X rem(X a, X b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<X>) {
    if (b == -1) return 0;
  }
  return static_cast<X>(a % b);
}
template <class X>
X min_of(X a, X b) {
  return a < b ? a : b;
}
template <class X>
X max_of(X a, X b) {
  return a > b ? a : b;
}
template <class X>
X neg(X a) {
  return sub<X>(0, a);
}
template <class X>
X abs_of(X a) {
  return a < 0 ? sub<X>(0, a) : a;
}
template <class X>
X sad(X a, X b, X c) {
  return add<X>(c, a < b ? sub(b, a) : sub(a, b));
}

template <class X>
X and_of(X a, X b) {
  return a & b;
}
template <class X>
X or_of(X a, X b) {
  return a | b;
}
template <class X>
X xor_of(X a, X b) {
  return a ^ b;
}
template <class X>
X not_of(X a) {
  return static_cast<X>(~a);
}
template <class X>
X cnot(X a) {
  return a == 0;
}
bool and_pred(bool a, bool b) { return a && b; }
bool or_pred(bool a, bool b) { return a || b; }
bool xor_pred(bool a, bool b) { return a != b; }
bool not_pred(bool a) { return !a; }
bool mov_pred(bool a) { return a; }

template <class X>
X shl(X a, uint32_t b) {
  return b >= 8 * sizeof(X) ? X{0} : static_cast<X>(a << b);
}
template <class X>
X shr(X a, uint32_t b) {
  constexpr uint32_t width = 8 * sizeof(X);
  if (b >= width) return std::is_signed_v<X> && a < 0 ? static_cast<X>(-1) : X{0};
  return static_cast<X>(a >> b);
}
uint32_t shf_l(uint32_t a, uint32_t b, uint32_t n) {
  return static_cast<uint32_t>(((uint64_t{b} << 32 | a) << n) >> 32);
}
uint32_t shf_r(uint32_t a, uint32_t b, uint32_t n) {
  return static_cast<uint32_t>((uint64_t{b} << 32 | a) >> n);
}
uint32_t shf_l_clamp(uint32_t a, uint32_t b, uint32_t c) { return shf_l(a, b, c > 32 ? 32 : c); }
uint32_t shf_r_clamp(uint32_t a, uint32_t b, uint32_t c) { return shf_r(a, b, c > 32 ? 32 : c); }
uint32_t shf_l_wrap(uint32_t a, uint32_t b, uint32_t c) { return shf_l(a, b, c & 31); }
uint32_t shf_r_wrap(uint32_t a, uint32_t b, uint32_t c) { return shf_r(a, b, c & 31); }

template <class X>
uint32_t popc(X a) {
  return static_cast<uint32_t>(std::popcount(a));
}
template <class X>
uint32_t clz(X a) {
  return static_cast<uint32_t>(std::countl_zero(a));
}
template <class X>
X brev(X a) {
  X r = 0;
  for (size_t i = 0; i < 8 * sizeof(X); ++i) r |= ((a >> i) & 1) << (8 * sizeof(X) - 1 - i);
  return r;
}
template <class X>
uint32_t bfind(X a) {
  U<X> v = static_cast<U<X>>(std::is_signed_v<X> && a < 0 ? ~a : a);
  return v == 0 ? ~0u : static_cast<uint32_t>(8 * sizeof(X) - 1) - static_cast<uint32_t>(std::countl_zero(v));
}
template <class X>
uint32_t bfind_shift(X a) {
  uint32_t r = bfind(a);
  return r == ~0u ? r : static_cast<uint32_t>(8 * sizeof(X) - 1) - r;
}
template <class X>
X bfe(X a, uint32_t start, uint32_t length) {
  constexpr uint32_t msb = 8 * sizeof(X) - 1;
  uint32_t pos = start & 255, len = length & 255;
  U<X> v = static_cast<U<X>>(a);
  U<X> sign = 0;
  if (std::is_signed_v<X> && len) {
    uint32_t at = pos + len - 1 < msb ? pos + len - 1 : msb;
    sign = (v >> at) & 1;
  }
  U<X> r = 0;
  for (uint32_t i = 0; i <= msb; ++i) {
    U<X> bit = i < len && pos + i <= msb ? (v >> (pos + i)) & 1 : sign;
    r |= bit << i;
  }
  return static_cast<X>(r);
}
template <class X>
X bfi(X a, X b, uint32_t c, uint32_t d) {
  constexpr uint32_t msb = 8 * sizeof(X) - 1;
  uint32_t pos = c & 255, len = d & 255;
  X r = b;
  for (uint32_t i = 0; i < len && pos + i <= msb; ++i) {
    X bit = X{1} << (pos + i);
    r = (r & ~bit) | (((a >> i) & 1) << (pos + i));
  }
  return r;
}
uint32_t bmsk_clamp(uint32_t a, uint32_t b) {
  if (a >= 32) return 0;
  uint32_t len = b > 32 ? 32 : b;
  uint64_t ones = (uint64_t{1} << len) - 1;
  return static_cast<uint32_t>(ones << a);
}
uint32_t bmsk_wrap(uint32_t a, uint32_t b) {
  uint64_t ones = (uint64_t{1} << (b & 31)) - 1;
  return static_cast<uint32_t>(ones << (a & 31));
}
uint32_t prmt(uint32_t a, uint32_t b, uint32_t c) {
  uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t sel = (c >> (4 * i)) & 15;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (sel & 7))) & 255;
    if (sel & 8) byte = byte & 0x80 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}
template <int kMode>
uint32_t prmt_mode(uint32_t a, uint32_t b, uint32_t c) {
  uint64_t bytes = uint64_t{b} << 32 | a;
  auto byte = [&](uint32_t i) { return static_cast<uint32_t>(bytes >> (8 * (i & 7))) & 255; };
  uint32_t n = c & 3, r = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    uint32_t v = 0;
    switch (kMode) {
      case 0:
        v = byte(n + i);
        break;  // f4e
      case 1:
        v = byte(n + 8 - i);
        break;  // b4e
      case 2:
        v = byte(n);
        break;  // rc8
      case 3:
        v = byte(i > n ? i : n);
        break;  // ecl
      case 4:
        v = byte(i < n ? i : n);
        break;  // ecr
      case 5:
        v = byte((n & 1) * 2 + (i & 1));
        break;  // rc16
    }
    r |= v << (8 * i);
  }
  return r;
}
template <class A, class B>
int32_t dp4a(uint32_t a, uint32_t b, int32_t c) {
  uint32_t r = static_cast<uint32_t>(c);
  for (int i = 0; i < 4; ++i)
    r += static_cast<uint32_t>(static_cast<int32_t>(static_cast<A>(a >> (8 * i))) *
                               static_cast<int32_t>(static_cast<B>(b >> (8 * i))));
  return static_cast<int32_t>(r);
}

// Two halves of a times two bytes of b: a[0] 0 the low bytes, 16 the high ones; a[1], a[2] a and b are
// signed.
Next do_dp2a(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t *a = lanes<uint32_t>(m, in.o[1]), *b = lanes<uint32_t>(m, in.o[2]),
                 *c = lanes<uint32_t>(m, in.o[3]);
  uint32_t r[32];
  for (int i = 0; i < 32; ++i) {
    r[i] = c[i];
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t x = (a[i] >> (16 * k)) & 0xffff, y = (b[i] >> (in.a[0] + 8 * k)) & 0xff;
      r[i] += (in.a[1] ? static_cast<uint32_t>(static_cast<int16_t>(x)) : x) *
              (in.a[2] ? static_cast<uint32_t>(static_cast<int8_t>(y)) : y);
    }
  }
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

template <class X>
X mul24_lo(X a, X b) {
  auto low = [](X v) -> int64_t {
    return std::is_signed_v<X>
               ? static_cast<int64_t>(static_cast<int32_t>(static_cast<uint32_t>(v) << 8) >> 8)
               : static_cast<int64_t>(v & 0xffffff);
  };
  return static_cast<X>(low(a) * low(b));
}
template <class X>
X mul24_hi(X a, X b) {
  auto low = [](X v) -> int64_t {
    return std::is_signed_v<X>
               ? static_cast<int64_t>(static_cast<int32_t>(static_cast<uint32_t>(v) << 8) >> 8)
               : static_cast<int64_t>(v & 0xffffff);
  };
  return static_cast<X>((low(a) * low(b)) >> 16);
}
template <class X>
X mad24_lo(X a, X b, X c) {
  return add<X>(mul24_lo(a, b), c);
}
int32_t mad_hi_sat(int32_t a, int32_t b, int32_t c) { return add_sat<int32_t>(mul_hi(a, b), c); }

// Two 16-bit integers: a[0] 0 add, 1 min, 2 max; a[1] signed; a[2] relu.
Next do_16x2(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t *a = lanes<uint32_t>(m, in.o[1]), *b = lanes<uint32_t>(m, in.o[2]);
  uint32_t r[32];
  auto one = [&](uint32_t x, uint32_t y) -> uint32_t {
    int32_t p = in.a[1] ? static_cast<int16_t>(x) : static_cast<int32_t>(x & 0xffff);
    int32_t q = in.a[1] ? static_cast<int16_t>(y) : static_cast<int32_t>(y & 0xffff);
    int32_t v = in.a[0] == 0 ? p + q : in.a[0] == 1 ? (p < q ? p : q) : (p > q ? p : q);
    if (in.a[2] && v < 0) v = 0;
    return static_cast<uint32_t>(v) & 0xffff;
  };
  for (int i = 0; i < 32; ++i) r[i] = one(a[i], b[i]) | one(a[i] >> 16, b[i] >> 16) << 16;
  store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  return Next::kNext;
}

int32_t min_relu(int32_t a, int32_t b) { return max_of<int32_t>(min_of(a, b), 0); }
int32_t max_relu(int32_t a, int32_t b) { return max_of<int32_t>(max_of(a, b), 0); }

template <class X>
X slct_int(X a, X b, int32_t c) {
  return c >= 0 ? a : b;
}
template <class X>
X slct_float(X a, X b, float c) {
  return c >= 0 ? a : b;  // NaN picks b
}
template <class X>
X slct_ftz(X a, X b, float c) {
  return flush(c) >= 0 ? a : b;
}

template <bool kWrap, class X>
X szext(X a, uint32_t width) {
  uint32_t n = kWrap ? width & 31 : width > 32 ? 32 : width;
  if (n == 32) return a;
  if (n == 0) return 0;
  uint32_t shifted = static_cast<uint32_t>(a) << (32 - n);
  return std::is_signed_v<X> ? static_cast<X>(static_cast<int32_t>(shifted) >> (32 - n))
                             : static_cast<X>(shifted >> (32 - n));
}

Next do_lop3(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t *a = lanes<uint32_t>(m, in.o[1]), *b = lanes<uint32_t>(m, in.o[2]),
                 *c = lanes<uint32_t>(m, in.o[3]);
  uint32_t lut = in.a[0];
  uint32_t r[32];
  for (int i = 0; i < 32; ++i) r[i] = 0;
  for (uint32_t k = 0; k < 8; ++k) {
    if (!((lut >> k) & 1)) continue;
    uint32_t x = k & 4 ? 0 : ~0u, y = k & 2 ? 0 : ~0u, z = k & 1 ? 0 : ~0u;
    for (int i = 0; i < 32; ++i) r[i] |= (a[i] ^ x) & (b[i] ^ y) & (c[i] ^ z);
  }
  if (in.o[0].present) store_lanes(lanes<uint32_t>(m, in.o[0]), r, mask);
  if (in.nx) {  // lop3.or and its like: x[0] = (result is not 0) op x[1]
    uint32_t p = 0;
    for (uint32_t i = 0; i < 32; ++i) p |= static_cast<uint32_t>(r[i] != 0) << i;
    const uint32_t q = predicate(m, in.x[1]);
    set_predicate(m, in.x[0], in.a[1] == 0 ? p | q : in.a[1] == 1 ? p & q : p ^ q, mask);
  }
  return Next::kNext;
}

// ---------------------------------------------------------------- comparison

enum Cmp : uint32_t { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };

template <class X>
struct Compared {
  using type = X;
  static X get(X x) { return x; }
};
template <>
struct Compared<Half> {
  using type = float;
  static float get(Half x) { return f16_to_f32(x.bits); }
};
template <>
struct Compared<Bfloat> {
  using type = float;
  static float get(Bfloat x) { return bf16_to_f32(x.bits); }
};

template <class X, bool kFlush>
uint32_t compare(Machine& m, const Opd& oa, const Opd& ob, uint32_t cmp) {
  using C = typename Compared<X>::type;
  Source<X> sa(m, oa), sb(m, ob);
  C a[32], b[32];
  for (int i = 0; i < 32; ++i) {
    a[i] = Compared<X>::get(sa[i]);
    b[i] = Compared<X>::get(sb[i]);
    if constexpr (kFlush && std::is_same_v<C, float>) {
      a[i] = flush(a[i]);
      b[i] = flush(b[i]);
    }
  }
  uint32_t r = 0;
#define MLA_COMPARE(value)                                                  \
  for (uint32_t i = 0; i < 32; ++i) r |= static_cast<uint32_t>(value) << i; \
  break
  switch (cmp) {
    case kEq:
      MLA_COMPARE(a[i] == b[i]);
    case kNe:
      MLA_COMPARE(a[i] < b[i] || a[i] > b[i]);
    case kLt:
      MLA_COMPARE(a[i] < b[i]);
    case kLe:
      MLA_COMPARE(a[i] <= b[i]);
    case kGt:
      MLA_COMPARE(a[i] > b[i]);
    case kGe:
      MLA_COMPARE(a[i] >= b[i]);
    case kEqu:
      MLA_COMPARE(!(a[i] < b[i] || a[i] > b[i]));
    case kNeu:
      MLA_COMPARE(a[i] != b[i]);
    case kLtu:
      MLA_COMPARE(!(a[i] >= b[i]));
    case kLeu:
      MLA_COMPARE(!(a[i] > b[i]));
    case kGtu:
      MLA_COMPARE(!(a[i] <= b[i]));
    case kGeu:
      MLA_COMPARE(!(a[i] < b[i]));
    case kNum:
      MLA_COMPARE(a[i] == a[i] && b[i] == b[i]);
    case kNan:
      MLA_COMPARE(a[i] != a[i] || b[i] != b[i]);
    default:
      break;
  }
#undef MLA_COMPARE
  return r;
}

// o[0] p, o[1] a, o[2] b, o[3] c (when a[1]), o[4] q. a[0]: comparison, a[1]: 0 none, 1 and, 2 or, 3 xor.
template <class X, bool kFlush>
Next do_setp(Machine& m, const Instr& in, uint32_t mask) {
  uint32_t r = compare<X, kFlush>(m, in.o[1], in.o[2], in.a[0]);
  uint32_t p = r, q = ~r;
  if (in.a[1]) {
    uint32_t c = predicate(m, in.o[3]);
    p = in.a[1] == 1 ? r & c : in.a[1] == 2 ? r | c : r ^ c;
    q = in.a[1] == 1 ? ~r & c : in.a[1] == 2 ? ~r | c : ~r ^ c;
  }
  set_predicate(m, in.o[0], p, mask);
  if (in.o[4].present) set_predicate(m, in.o[4], q, mask);
  return Next::kNext;
}

// The same with an integer (all ones) or float (1.0) result; a[2]: the value of true.
template <class X, bool kFlush>
Next do_set(Machine& m, const Instr& in, uint32_t mask) {
  uint32_t r = compare<X, kFlush>(m, in.o[1], in.o[2], in.a[0]);
  if (in.a[1]) {
    uint32_t c = predicate(m, in.o[3]);
    r = in.a[1] == 1 ? r & c : in.a[1] == 2 ? r | c : r ^ c;
  }
  uint32_t v[32];
  for (uint32_t i = 0; i < 32; ++i) v[i] = (r >> i) & 1 ? in.a[2] : 0;
  store_lanes(lanes<uint32_t>(m, in.o[0]), v, mask);
  return Next::kNext;
}

template <class X>
X select(X a, X b, bool c) {
  return c ? a : b;
}

// ---------------------------------------------------------------- moves

template <class X>
X identity(X a) {
  return a;
}

Next do_mov128(Machine& m, const Instr& in, uint32_t mask) {
  uint64_t* d = lanes<uint64_t>(m, in.o[0]);
  const uint64_t* s = lanes<uint64_t>(m, in.o[1]);
  uint64_t t[64];
  std::memcpy(t, s, sizeof t);
  store_lanes(d, t, mask);
  store_lanes(d + 32, t + 32, mask);
  return Next::kNext;
}

// mov.v4 of a special register: x[0..nx/2) = x[nx/2..nx).
Next do_mov_vector(Machine& m, const Instr& in, uint32_t mask) {
  const uint32_t n = in.nx / 2;
  for (uint32_t k = 0; k < n; ++k) {
    store_lanes(lanes<uint32_t>(m, in.x[k]), lanes<uint32_t>(m, in.x[n + k]), mask);
  }
  return Next::kNext;
}

// Packs x[0..nx) of a[0] bits each into o[0] of a[1] bits.
Next do_pack(Machine& m, const Instr& in, uint32_t mask) {
  uint64_t low[32] = {}, high[32] = {};
  for (uint32_t k = 0; k < in.nx; ++k) {
    uint32_t shift = k * in.a[0];
    for (int i = 0; i < 32; ++i) {
      uint64_t v = in.a[0] <= 32 ? lanes<uint32_t>(m, in.x[k])[i] : lanes<uint64_t>(m, in.x[k])[i];
      if (shift < 64) {
        low[i] |= v << shift;
      } else {
        high[i] |= v << (shift - 64);
      }
    }
  }
  if (in.a[1] <= 32) {
    uint32_t narrow[32];
    for (int i = 0; i < 32; ++i) narrow[i] = static_cast<uint32_t>(low[i]);
    store_lanes(lanes<uint32_t>(m, in.o[0]), narrow, mask);
  } else {
    store_lanes(lanes<uint64_t>(m, in.o[0]), low, mask);
    if (in.a[1] == 128) store_lanes(lanes<uint64_t>(m, in.o[0]) + 32, high, mask);
  }
  return Next::kNext;
}

// Unpacks o[1] of a[1] bits into x[0..nx) of a[0] bits each.
Next do_unpack(Machine& m, const Instr& in, uint32_t mask) {
  uint64_t low[32], high[32] = {};
  for (int i = 0; i < 32; ++i) {
    low[i] = in.a[1] <= 32 ? lanes<uint32_t>(m, in.o[1])[i] : lanes<uint64_t>(m, in.o[1])[i];
    if (in.a[1] == 128) high[i] = lanes<uint64_t>(m, in.o[1])[32 + i];
  }
  uint64_t ones = in.a[0] == 64 ? ~uint64_t{0} : (uint64_t{1} << in.a[0]) - 1;
  for (uint32_t k = 0; k < in.nx; ++k) {
    uint32_t shift = k * in.a[0];
    if (in.a[0] <= 32) {
      uint32_t v[32];
      for (int i = 0; i < 32; ++i)
        v[i] = static_cast<uint32_t>(((shift < 64 ? low[i] >> shift : high[i] >> (shift - 64))) & ones);
      store_lanes(lanes<uint32_t>(m, in.x[k]), v, mask);
    } else {
      store_lanes(lanes<uint64_t>(m, in.x[k]), shift < 64 ? low : high, mask);
    }
  }
  return Next::kNext;
}

// %clock, %clock64, %globaltimer: grow with executed instructions.
template <class X>
Next do_clock(Machine& m, const Instr& in, uint32_t mask) {
  uint64_t t = m.report->warp_instructions + (in.a[0] ? 1'000'000'000'000u : 0);
  X v[32];
  for (int i = 0; i < 32; ++i) v[i] = static_cast<X>(in.a[1] ? t >> 32 : t);
  store_lanes(lanes<X>(m, in.o[0]), reinterpret_cast<const Store<X>*>(v), mask);
  return Next::kNext;
}

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

// add.cc and friends: a[0] 1 subtract, a[1] 1 take the carry in, a[2] 1 give it out.
template <class X>
Next do_carry(Machine& m, const Instr& in, uint32_t mask) {
  Source<X> a(m, in.o[1]), b(m, in.o[2]);
  uint32_t carry_in = in.a[1] ? *reinterpret_cast<uint32_t*>(operand_at(m, in.o[3])) : (in.a[0] ? ~0u : 0u);
  Store<X> r[32];
  uint32_t carry = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    X y = in.a[0] ? static_cast<X>(~b[static_cast<int>(i)]) : b[static_cast<int>(i)];
    unsigned __int128 sum =
        static_cast<unsigned __int128>(a[static_cast<int>(i)]) + y + ((carry_in >> i) & 1);
    r[i] = static_cast<X>(sum);
    carry |= static_cast<uint32_t>((sum >> (8 * sizeof(X))) & 1) << i;
  }
  store_lanes(lanes<X>(m, in.o[0]), r, mask);
  if (in.a[2]) set_predicate(m, in.o[3], carry, mask);
  return Next::kNext;
}

Handler integer_binary(const std::string& name, T t, bool saturate) {
  if (name == "add")
    return saturate ? Handler(alu<add_sat<int32_t>, int32_t, int32_t, int32_t>)
                    : MLA_PICK(t, (alu<add<X>, X, X, X>));
  if (name == "sub")
    return saturate ? Handler(alu<sub_sat<int32_t>, int32_t, int32_t, int32_t>)
                    : MLA_PICK(t, (alu<sub<X>, X, X, X>));
  if (name == "div") return MLA_PICK(t, (alu<div<X>, X, X, X>));
  if (name == "rem") return MLA_PICK(t, (alu<rem<X>, X, X, X>));
  if (name == "min") return MLA_PICK(t, (alu<min_of<X>, X, X, X>));
  if (name == "max") return MLA_PICK(t, (alu<max_of<X>, X, X, X>));
  return nullptr;
}

bool is_integer(T t) {
  return t == T::kU16 || t == T::kS16 || t == T::kU32 || t == T::kS32 || t == T::kU64 || t == T::kS64;
}

uint32_t comparison(Decoder& d, bool floating, bool is_unsigned_type) {
  std::string c = d.one_of({"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu",
                            "leu", "gtu", "geu", "num", "nan"});
  static const std::map<std::string, uint32_t> codes = {
      {"eq", kEq},   {"ne", kNe},   {"lt", kLt},   {"le", kLe},   {"gt", kGt},   {"ge", kGe},
      {"lo", kLt},   {"ls", kLe},   {"hi", kGt},   {"hs", kGe},   {"equ", kEqu}, {"neu", kNeu},
      {"ltu", kLtu}, {"leu", kLeu}, {"gtu", kGtu}, {"geu", kGeu}, {"num", kNum}, {"nan", kNan}};
  if (c.empty()) d.fail("no comparison in " + d.s.op_text);
  bool unsigned_only = c == "lo" || c == "ls" || c == "hi" || c == "hs";
  if (unsigned_only && !is_unsigned_type) d.fail("." + c + " needs an unsigned type");
  uint32_t code = codes.at(c);
  if (code >= kEqu && !floating) d.fail("." + c + " needs a floating-point type");
  return code;
}

}  // namespace

bool decode_arithmetic(Decoder& d) {
  const std::string& name = d.name();
  Instr& in = d.in;

  if (name == "add" || name == "sub" || name == "min" || name == "max" || name == "div" || name == "rem") {
    // The floating forms are decode_float's.
    for (const std::string& part : d.s.op) {
      if (part == "f32" || part == "f64" || part == "f16" || part == "bf16" || part == "f16x2" ||
          part == "bf16x2")
        return false;
    }
    bool carry = d.mod("cc");
    bool saturate = d.mod("sat");
    bool relu = (name == "min" || name == "max") && d.mod("relu");
    T t = d.type();
    d.need(3);
    if (t == T::kU16x2 || t == T::kS16x2) {
      if (carry || saturate || (name != "add" && name != "min" && name != "max") ||
          (relu && t == T::kU16x2)) {
        d.fail(d.s.op_text + " is not supported");
      }
      in.fn = do_16x2;
      in.a[0] = name == "add" ? 0 : name == "min" ? 1 : 2;
      in.a[1] = t == T::kS16x2;
      in.a[2] = relu;
      in.o[0] = d.dst(0, t);
      in.o[1] = d.src(1, t);
      in.o[2] = d.src(2, t);
      return true;
    }
    if (relu) {
      if (t != T::kS32) d.fail(".relu needs .s32 or .s16x2");
      in.fn = name == "min" ? Handler(alu<min_relu, int32_t, int32_t, int32_t>)
                            : Handler(alu<max_relu, int32_t, int32_t, int32_t>);
      for (size_t i = 0; i < 3; ++i) in.o[i] = i ? d.src(i, t) : d.dst(i, t);
      return true;
    }
    if (carry) {
      if (name != "add" && name != "sub") d.fail(".cc is not supported for " + name);
      bool wide = bits_of(t) == 64;
      in.fn = wide ? Handler(do_carry<uint64_t>) : Handler(do_carry<uint32_t>);
      in.a[0] = name == "sub";
      in.a[2] = 1;
    } else {
      if (!is_integer(t)) d.fail("type ." + std::string(type_name(t)) + " is not supported for " + name);
      if (saturate && t != T::kS32) d.fail(".sat needs .s32");
      if (saturate && name != "add" && name != "sub") d.fail(".sat is not supported for " + name);
      in.fn = integer_binary(name, t, saturate);
    }
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, t);
    if (carry) {
      in.o[3].offset = d.carry_place();
      in.o[3].constant = 2;
      in.o[3].present = 1;
    }
    return true;
  }
  if (name == "addc" || name == "subc") {
    bool out = d.mod("cc");
    T t = d.type();
    d.need(3);
    in.fn = bits_of(t) == 64 ? Handler(do_carry<uint64_t>) : Handler(do_carry<uint32_t>);
    in.a[0] = name == "subc";
    in.a[1] = 1;
    in.a[2] = out;
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, t);
    in.o[3].offset = d.carry_place();
    in.o[3].constant = 2;
    in.o[3].present = 1;
    return true;
  }
  if (name == "mul24" || name == "mad24") {
    std::string part = d.one_of({"lo", "hi"});
    T t = d.type_in({T::kU32, T::kS32});
    bool mad = name == "mad24";
    if (part.empty() || (mad && part == "hi")) d.fail(d.s.op_text + " is not supported");
    d.need(mad ? 4 : 3);
    if (mad) {
      in.fn = MLA_PICK(t, (alu<mad24_lo<X>, X, X, X, X>));
    } else {
      in.fn =
          part == "lo" ? MLA_PICK(t, (alu<mul24_lo<X>, X, X, X>)) : MLA_PICK(t, (alu<mul24_hi<X>, X, X, X>));
    }
    in.o[0] = d.dst(0, t);
    for (size_t i = 1; i < d.count(); ++i) in.o[i] = d.src(i, t);
    return true;
  }
  if (name == "slct") {
    bool ftz = d.mod("ftz");
    T t = d.type();
    T by = d.type_in({T::kS32, T::kF32});
    d.need(4);
    if (ftz && by != T::kF32) d.fail(".ftz needs .f32");
    in.fn = by == T::kS32 ? MLA_PICK_BITS(t, (alu<slct_int<X>, X, X, X, int32_t>))
            : ftz         ? MLA_PICK_BITS(t, (alu<slct_ftz<X>, X, X, X, float>))
                          : MLA_PICK_BITS(t, (alu<slct_float<X>, X, X, X, float>));
    if (!in.fn) d.fail("type ." + std::string(type_name(t)) + " is not supported for slct");
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, t);
    in.o[3] = d.src(3, by);
    return true;
  }
  if (name == "szext") {
    std::string mode = d.one_of({"clamp", "wrap"});
    T t = d.type_in({T::kU32, T::kS32});
    d.need(3);
    if (mode.empty()) d.fail("szext needs .clamp or .wrap");
    bool wrap = mode == "wrap";
    in.fn = t == T::kU32 ? (wrap ? Handler(alu<szext<true, uint32_t>, uint32_t, uint32_t, uint32_t>)
                                 : Handler(alu<szext<false, uint32_t>, uint32_t, uint32_t, uint32_t>))
                         : (wrap ? Handler(alu<szext<true, int32_t>, int32_t, int32_t, uint32_t>)
                                 : Handler(alu<szext<false, int32_t>, int32_t, int32_t, uint32_t>));
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, T::kU32);
    return true;
  }
  if (name == "mul" || name == "mad") {
    if (name == "mad" && d.mod("sat")) {
      if (!d.mod("hi")) d.fail("mad.sat needs .hi.s32");
      d.type_in({T::kS32});
      d.need(4);
      in.fn = alu<mad_hi_sat, int32_t, int32_t, int32_t, int32_t>;
      in.o[0] = d.dst(0, T::kS32);
      for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kS32);
      return true;
    }
    std::string part = d.one_of({"lo", "hi", "wide"});
    if (part.empty()) return false;
    T t = d.type();
    if (!is_integer(t))
      d.fail("type ." + std::string(type_name(t)) + " is not supported for " + name + "." + part);
    bool mad = name == "mad";
    d.need(mad ? 4 : 3);
    uint32_t bits = bits_of(t), result_bits = part == "wide" ? 2 * bits : bits;
    if (part == "wide" && bits == 64) d.fail("mul.wide of 64 bits is not supported");
    if (part == "lo")
      in.fn = mad ? MLA_PICK(t, (alu<mad_lo<X>, X, X, X, X>)) : MLA_PICK(t, (alu<mul_lo<X>, X, X, X>));
    if (part == "hi")
      in.fn = mad ? MLA_PICK(t, (alu<mad_hi<X>, X, X, X, X>)) : MLA_PICK(t, (alu<mul_hi<X>, X, X, X>));
    if (part == "wide") {
      switch (t) {
        case T::kU16:
          in.fn = mad ? Handler(alu<mad_wide<uint16_t>, uint32_t, uint16_t, uint16_t, uint32_t>)
                      : Handler(alu<mul_wide<uint16_t>, uint32_t, uint16_t, uint16_t>);
          break;
        case T::kS16:
          in.fn = mad ? Handler(alu<mad_wide<int16_t>, int32_t, int16_t, int16_t, int32_t>)
                      : Handler(alu<mul_wide<int16_t>, int32_t, int16_t, int16_t>);
          break;
        case T::kU32:
          in.fn = mad ? Handler(alu<mad_wide<uint32_t>, uint64_t, uint32_t, uint32_t, uint64_t>)
                      : Handler(alu<mul_wide<uint32_t>, uint64_t, uint32_t, uint32_t>);
          break;
        default:
          in.fn = mad ? Handler(alu<mad_wide<int32_t>, int64_t, int32_t, int32_t, int64_t>)
                      : Handler(alu<mul_wide<int32_t>, int64_t, int32_t, int32_t>);
          break;
      }
    }
    in.o[0] = d.dst(d.operand(0), result_bits);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, t);
    if (mad) in.o[3] = d.src(3, result_bits == 64 ? T::kU64 : result_bits == 32 ? T::kU32 : T::kU16);
    return true;
  }
  if (name == "neg" || name == "abs") {
    for (const std::string& part : d.s.op) {
      if (part == "f32" || part == "f64" || part == "f16" || part == "bf16" || part == "f16x2" ||
          part == "bf16x2")
        return false;
    }
    T t = d.type_in({T::kS16, T::kS32, T::kS64});
    d.need(2);
    bool is_neg = name == "neg";
    in.fn = t == T::kS16   ? (is_neg ? Handler(alu<neg<int16_t>, int16_t, int16_t>)
                                     : Handler(alu<abs_of<int16_t>, int16_t, int16_t>))
            : t == T::kS32 ? (is_neg ? Handler(alu<neg<int32_t>, int32_t, int32_t>)
                                     : Handler(alu<abs_of<int32_t>, int32_t, int32_t>))
                           : (is_neg ? Handler(alu<neg<int64_t>, int64_t, int64_t>)
                                     : Handler(alu<abs_of<int64_t>, int64_t, int64_t>));
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    return true;
  }
  if (name == "sad") {
    T t = d.type();
    d.need(4);
    in.fn = MLA_PICK(t, (alu<sad<X>, X, X, X, X>));
    if (!in.fn) d.fail("type is not supported for sad");
    in.o[0] = d.dst(0, t);
    for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, t);
    return true;
  }
  if (name == "and" || name == "or" || name == "xor" || name == "not" || name == "cnot") {
    T t = d.type_in({T::kPred, T::kB16, T::kB32, T::kB64});
    bool unary = name == "not" || name == "cnot";
    d.need(unary ? 2 : 3);
    if (t == T::kPred) {
      if (name == "cnot") d.fail("cnot needs .b16, .b32 or .b64");
      in.fn = name == "and"   ? Handler(alu<and_pred, Pred, Pred, Pred>)
              : name == "or"  ? Handler(alu<or_pred, Pred, Pred, Pred>)
              : name == "xor" ? Handler(alu<xor_pred, Pred, Pred, Pred>)
                              : Handler(alu<not_pred, Pred, Pred>);
    } else {
      in.fn = name == "and"   ? MLA_PICK_BITS(t, (alu<and_of<X>, X, X, X>))
              : name == "or"  ? MLA_PICK_BITS(t, (alu<or_of<X>, X, X, X>))
              : name == "xor" ? MLA_PICK_BITS(t, (alu<xor_of<X>, X, X, X>))
              : name == "not" ? MLA_PICK_BITS(t, (alu<not_of<X>, X, X>))
                              : MLA_PICK_BITS(t, (alu<cnot<X>, X, X>));
    }
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    if (!unary) in.o[2] = d.src(2, t);
    return true;
  }
  if (name == "shl" || name == "shr") {
    T t = d.type();
    if (name == "shl" && bits_of(t) >= 16 && !is_integer(t)) {
      in.fn = MLA_PICK_BITS(t, (alu<shl<X>, X, X, uint32_t>));
    } else if (name == "shr") {
      T u = t == T::kB16 ? T::kU16 : t == T::kB32 ? T::kU32 : t == T::kB64 ? T::kU64 : t;
      in.fn = MLA_PICK(u, (alu<shr<X>, X, X, uint32_t>));
    }
    if (!in.fn) d.fail("type ." + std::string(type_name(t)) + " is not supported for " + name);
    d.need(3);
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, T::kU32);
    return true;
  }
  if (name == "shf") {
    std::string side = d.one_of({"l", "r"}), mode = d.one_of({"clamp", "wrap"});
    d.type_in({T::kB32});
    d.need(4);
    if (side.empty() || mode.empty()) d.fail("shf needs .l or .r and .clamp or .wrap");
    in.fn = side == "l"
                ? (mode == "clamp" ? Handler(alu<shf_l_clamp, uint32_t, uint32_t, uint32_t, uint32_t>)
                                   : Handler(alu<shf_l_wrap, uint32_t, uint32_t, uint32_t, uint32_t>))
                : (mode == "clamp" ? Handler(alu<shf_r_clamp, uint32_t, uint32_t, uint32_t, uint32_t>)
                                   : Handler(alu<shf_r_wrap, uint32_t, uint32_t, uint32_t, uint32_t>));
    in.o[0] = d.dst(0, T::kU32);
    for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kU32);
    return true;
  }
  if (name == "lop3") {
    std::string combine = d.one_of({"or", "and", "xor"});
    d.type_in({T::kB32});
    d.need(combine.empty() ? 5 : 6);
    in.fn = do_lop3;
    if (combine.empty()) {
      in.o[0] = d.dst(0, T::kB32);
    } else {
      const Operand& to = d.operand(0);
      if (to.kind != Operand::kPair) d.fail(d.s.op_text + " needs a register (or _) and a predicate");
      if (to.parts[0].kind != Operand::kSink) in.o[0] = d.dst(to.parts[0], 32);
      in.a[1] = combine == "or" ? 0 : combine == "and" ? 1 : 2;
      d.pool({d.dst(to.parts[1], 1), d.src_pred(d.operand(5))});
    }
    for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kB32);
    in.a[0] = static_cast<uint32_t>(d.immediate(4)) & 255;
    return true;
  }
  if (name == "prmt") {
    d.type_in({T::kB32});
    std::string mode = d.one_of({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
    d.need(4);
    in.fn = mode.empty()    ? Handler(alu<prmt, uint32_t, uint32_t, uint32_t, uint32_t>)
            : mode == "f4e" ? Handler(alu<prmt_mode<0>, uint32_t, uint32_t, uint32_t, uint32_t>)
            : mode == "b4e" ? Handler(alu<prmt_mode<1>, uint32_t, uint32_t, uint32_t, uint32_t>)
            : mode == "rc8" ? Handler(alu<prmt_mode<2>, uint32_t, uint32_t, uint32_t, uint32_t>)
            : mode == "ecl" ? Handler(alu<prmt_mode<3>, uint32_t, uint32_t, uint32_t, uint32_t>)
            : mode == "ecr" ? Handler(alu<prmt_mode<4>, uint32_t, uint32_t, uint32_t, uint32_t>)
                            : Handler(alu<prmt_mode<5>, uint32_t, uint32_t, uint32_t, uint32_t>);
    in.o[0] = d.dst(0, T::kB32);
    for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kB32);
    return true;
  }
  if (name == "popc" || name == "clz") {
    T t = d.type_in({T::kB32, T::kB64});
    d.need(2);
    bool wide = t == T::kB64;
    in.fn = name == "popc" ? (wide ? Handler(alu<popc<uint64_t>, uint32_t, uint64_t>)
                                   : Handler(alu<popc<uint32_t>, uint32_t, uint32_t>))
                           : (wide ? Handler(alu<clz<uint64_t>, uint32_t, uint64_t>)
                                   : Handler(alu<clz<uint32_t>, uint32_t, uint32_t>));
    in.o[0] = d.dst(0, T::kU32);
    in.o[1] = d.src(1, t);
    return true;
  }
  if (name == "brev") {
    T t = d.type_in({T::kB32, T::kB64});
    d.need(2);
    in.fn = t == T::kB64 ? Handler(alu<brev<uint64_t>, uint64_t, uint64_t>)
                         : Handler(alu<brev<uint32_t>, uint32_t, uint32_t>);
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    return true;
  }
  if (name == "bfind") {
    bool shift = d.mod("shiftamt");
    T t = d.type_in({T::kU32, T::kS32, T::kU64, T::kS64});
    d.need(2);
    in.fn =
        shift ? MLA_PICK(t, (alu<bfind_shift<X>, uint32_t, X>)) : MLA_PICK(t, (alu<bfind<X>, uint32_t, X>));
    in.o[0] = d.dst(0, T::kU32);
    in.o[1] = d.src(1, t);
    return true;
  }
  if (name == "bfe") {
    T t = d.type_in({T::kU32, T::kS32, T::kU64, T::kS64});
    d.need(4);
    in.fn = MLA_PICK(t, (alu<bfe<X>, X, X, uint32_t, uint32_t>));
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, T::kU32);
    in.o[3] = d.src(3, T::kU32);
    return true;
  }
  if (name == "bfi") {
    T t = d.type_in({T::kB32, T::kB64});
    d.need(5);
    in.fn = t == T::kB64 ? Handler(alu<bfi<uint64_t>, uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>)
                         : Handler(alu<bfi<uint32_t>, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>);
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, t);
    in.o[3] = d.src(3, T::kU32);
    in.o[4] = d.src(4, T::kU32);
    return true;
  }
  if (name == "bmsk") {
    std::string mode = d.one_of({"clamp", "wrap"});
    d.type_in({T::kB32});
    d.need(3);
    in.fn = mode == "clamp" ? Handler(alu<bmsk_clamp, uint32_t, uint32_t, uint32_t>)
                            : Handler(alu<bmsk_wrap, uint32_t, uint32_t, uint32_t>);
    in.o[0] = d.dst(0, T::kB32);
    in.o[1] = d.src(1, T::kB32);
    in.o[2] = d.src(2, T::kB32);
    return true;
  }
  if (name == "dp2a") {
    std::string half = d.one_of({"lo", "hi"});
    T a = d.type_in({T::kU32, T::kS32}), b = d.type_in({T::kU32, T::kS32});
    if (half.empty()) d.fail("dp2a needs .lo or .hi");
    d.need(4);
    in.fn = do_dp2a;
    in.a[0] = half == "hi" ? 16 : 0;
    in.a[1] = a == T::kS32;
    in.a[2] = b == T::kS32;
    in.o[0] = d.dst(0, T::kS32);
    for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kS32);
    return true;
  }
  if (name == "dp4a") {
    T a = d.type_in({T::kU32, T::kS32}), b = d.type_in({T::kU32, T::kS32});
    d.need(4);
    in.fn = a == T::kU32
                ? (b == T::kU32 ? Handler(alu<dp4a<uint8_t, uint8_t>, int32_t, uint32_t, uint32_t, int32_t>)
                                : Handler(alu<dp4a<uint8_t, int8_t>, int32_t, uint32_t, uint32_t, int32_t>))
                : (b == T::kU32 ? Handler(alu<dp4a<int8_t, uint8_t>, int32_t, uint32_t, uint32_t, int32_t>)
                                : Handler(alu<dp4a<int8_t, int8_t>, int32_t, uint32_t, uint32_t, int32_t>));
    in.o[0] = d.dst(0, T::kS32);
    for (size_t i = 1; i < 4; ++i) in.o[i] = d.src(i, T::kS32);
    return true;
  }
  if (name == "setp" || name == "set") {
    bool ftz = d.mod("ftz");
    std::string combine = d.one_of({"and", "or", "xor"});
    T result = name == "set" ? d.type_in({T::kU32, T::kS32, T::kF32}) : T::kPred;
    T t = d.type();
    bool floating = is_float(t);
    bool is_unsigned_type = t == T::kU16 || t == T::kU32 || t == T::kU64;
    in.a[0] = comparison(d, floating, is_unsigned_type);
    T u = t == T::kB16 ? T::kU16 : t == T::kB32 ? T::kU32 : t == T::kB64 ? T::kU64 : t;
    if (u != t && in.a[0] > kNe) d.fail("bit types compare with .eq and .ne only");
    bool pred = name == "setp";
#define MLA_COMPARISON(type, ftz_value) \
  (pred ? Handler(do_setp<type, ftz_value>) : Handler(do_set<type, ftz_value>))
    switch (u) {
      case T::kU16:
        in.fn = MLA_COMPARISON(uint16_t, false);
        break;
      case T::kS16:
        in.fn = MLA_COMPARISON(int16_t, false);
        break;
      case T::kU32:
        in.fn = MLA_COMPARISON(uint32_t, false);
        break;
      case T::kS32:
        in.fn = MLA_COMPARISON(int32_t, false);
        break;
      case T::kU64:
        in.fn = MLA_COMPARISON(uint64_t, false);
        break;
      case T::kS64:
        in.fn = MLA_COMPARISON(int64_t, false);
        break;
      case T::kF32:
        in.fn = ftz ? MLA_COMPARISON(float, true) : MLA_COMPARISON(float, false);
        break;
      case T::kF64:
        in.fn = MLA_COMPARISON(double, false);
        break;
      case T::kF16:
        in.fn = MLA_COMPARISON(Half, false);
        break;
      case T::kBF16:
        in.fn = MLA_COMPARISON(Bfloat, false);
        break;
      default:
        d.fail("type ." + std::string(type_name(t)) + " is not supported for " + name);
    }
#undef MLA_COMPARISON
    if (ftz && t != T::kF32) d.fail(".ftz needs .f32");
    d.need(combine.empty() ? 3 : 4);
    if (pred) {
      const Operand& to = d.operand(0);
      if (to.kind == Operand::kPair) {
        in.o[0] = d.dst(to.parts[0], 1);
        in.o[4] = d.dst(to.parts[1], 1);
      } else {
        in.o[0] = d.dst(to, 1);
      }
    } else {
      in.o[0] = d.dst(0, result);
      in.a[2] = result == T::kF32 ? 0x3f800000 : ~0u;
    }
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, t);
    if (!combine.empty()) {
      in.a[1] = combine == "and" ? 1 : combine == "or" ? 2 : 3;
      in.o[3] = d.src_pred(d.operand(3));
    }
    return true;
  }
  if (name == "selp") {
    T t = d.type();
    d.need(4);
    in.fn = MLA_PICK_BITS(t, (alu<select<X>, X, X, X, Pred>));
    if (!in.fn) d.fail("type ." + std::string(type_name(t)) + " is not supported for selp");
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    in.o[2] = d.src(2, t);
    in.o[3] = d.src_pred(d.operand(3));
    return true;
  }
  if (name == "mov") {
    std::string vec = d.one_of({"v2", "v4"});
    T t = d.type();
    d.need(2);
    const Operand &to = d.operand(0), &from = d.operand(1);
    if (!vec.empty()) {
      if (from.kind != Operand::kSpecial || bits_of(t) != 32)
        d.fail(d.s.op_text + " is supported for 32-bit special registers only");
      auto targets = d.elements(to);
      const size_t n = vec == "v2" ? 2 : 4;
      if (targets.size() != n)
        d.fail(d.s.op_text + " needs " + std::to_string(n) + " registers, found " +
               std::to_string(targets.size()));
      std::vector<Opd> parts;
      for (const Operand* target : targets) parts.push_back(d.dst(*target, 32));
      for (const char* component : {".x", ".y", ".z", ".w"}) {
        Operand part = from;
        part.text += component;
        if (parts.size() < 2 * n) parts.push_back(d.src(part, t));
      }
      in.fn = do_mov_vector;
      d.pool(std::move(parts));
      return true;
    }
    if (from.kind == Operand::kVector || to.kind == Operand::kVector) {
      bool pack = from.kind == Operand::kVector;
      const Operand& list = pack ? from : to;
      uint32_t n = static_cast<uint32_t>(list.parts.size()), bits = bits_of(t);
      if ((n != 2 && n != 4) || bits % n || bits / n < 8)
        d.fail("mov between " + std::to_string(n) + " elements and ." + type_name(t) + " is not supported");
      uint32_t part = bits / n;
      T part_type = part == 8 ? T::kB8 : part == 16 ? T::kB16 : part == 32 ? T::kB32 : T::kB64;
      std::vector<Opd> parts;
      for (const Operand& o : list.parts) {
        parts.push_back(pack ? d.src(o, part_type) : d.dst(o, part));
      }
      in.a[0] = part;
      in.a[1] = bits;
      in.fn = pack ? do_pack : do_unpack;
      if (pack) {
        in.o[0] = d.dst(0, t);
      } else {
        in.o[1] = d.src(1, t);
      }
      d.pool(std::move(parts));
      return true;
    }
    if (from.kind == Operand::kSpecial) {
      const std::string& special = from.text;
      bool clock = special.rfind("%clock", 0) == 0 && special.rfind("%cluster", 0) != 0;
      bool timer = special.rfind("%globaltimer", 0) == 0;
      if (clock || timer) {
        bool wide = special == "%clock64" || special == "%globaltimer";
        if ((wide ? 64u : 32u) != bits_of(t))
          d.fail(special + " does not have " + std::to_string(bits_of(t)) + " bits");
        in.fn = wide ? Handler(do_clock<uint64_t>) : Handler(do_clock<uint32_t>);
        in.a[0] = timer;
        in.a[1] = special.size() > 3 && special.substr(special.size() - 3) == "_hi";
        in.o[0] = d.dst(0, t);
        return true;
      }
      if (special.rfind("%envreg", 0) == 0) d.fail(special + " is not supported");
    }
    if (t == T::kPred) {
      in.fn = alu<mov_pred, Pred, Pred>;
      in.o[0] = d.dst(0, t);
      in.o[1] = d.src_pred(from);
      return true;
    }
    in.fn = t == T::kB128 ? Handler(do_mov128) : MLA_PICK_BITS(t, (alu<identity<X>, X, X>));
    if (!in.fn) d.fail("type ." + std::string(type_name(t)) + " is not supported for mov");
    in.o[0] = d.dst(0, t);
    in.o[1] = d.src(1, t);
    return true;
  }
  return false;
}

}  // namespace mla::emu
