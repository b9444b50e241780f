// SPDX-License-Identifier: Apache-2.0
//
// Floating-point arithmetic, approximations, comparisons.
#include "tests/emulator/conformance/case.h"

namespace mla::conformance {
namespace {

std::string operands(size_t count) {
  std::string text = " o0";
  for (size_t i = 0; i < count; ++i) text += ", i" + std::to_string(i);
  return text + ";";
}

}  // namespace

void add_float_cases(std::vector<Case>* cases) {
  const auto add = [&](const std::string& name, std::vector<std::string> in, std::vector<std::string> out,
                       std::string body = "") -> Case& {
    Case c;
    c.name = name;
    c.body = body.empty() ? name + operands(in.size()) : body;
    c.in = std::move(in);
    c.out = std::move(out);
    cases->push_back(std::move(c));
    return cases->back();
  };
  const auto approximate = [&](const std::string& name, const std::string& type, double ulps,
                               size_t operand_count = 1) {
    Case& c = add(name, std::vector<std::string>(operand_count, type), {type});
    c.grid = 2;
    c.compare = Compare::kUlp;
    c.tolerance = ulps;
  };

  for (const char* rounding : {"rn", "rz", "rm", "rp"}) {
    for (const char* ftz : {"", ".ftz"}) {
      for (const char* op : {"add", "sub", "mul"}) {
        add(std::string(op) + "." + rounding + ftz + ".f32", {"f32", "f32"}, {"f32"});
      }
      add(std::string("fma.") + rounding + ftz + ".f32", {"f32", "f32", "f32"}, {"f32"});
      add(std::string("div.") + rounding + ftz + ".f32", {"f32", "f32"}, {"f32"});
      add(std::string("rcp.") + rounding + ftz + ".f32", {"f32"}, {"f32"});
      add(std::string("sqrt.") + rounding + ftz + ".f32", {"f32"}, {"f32"});
    }
    for (const char* op : {"add", "sub", "mul", "div"}) {
      add(std::string(op) + "." + rounding + ".f64", {"f64", "f64"}, {"f64"});
    }
    add(std::string("fma.") + rounding + ".f64", {"f64", "f64", "f64"}, {"f64"});
    add(std::string("sqrt.") + rounding + ".f64", {"f64"}, {"f64"});
  }
  // The forms without a rounding modifier, and saturation.
  for (const char* op : {"add.f32", "sub.f32", "mul.f32", "add.ftz.f32", "mul.ftz.f32", "add.sat.f32",
                         "mul.sat.f32", "add.ftz.sat.f32"}) {
    add(op, {"f32", "f32"}, {"f32"});
  }
  add("fma.rn.sat.f32", {"f32", "f32", "f32"}, {"f32"});
  add("mad.rn.f32", {"f32", "f32", "f32"}, {"f32"});
  for (const char* op : {"add.f64", "sub.f64", "mul.f64"}) add(op, {"f64", "f64"}, {"f64"});

  for (const char* op : {"min", "max"}) {
    for (const char* modifier : {"", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs"}) {
      add(std::string(op) + modifier + ".f32", {"f32", "f32"}, {"f32"});
    }
    add(std::string(op) + ".f64", {"f64", "f64"}, {"f64"});
    for (const char* type : {"f16", "f16x2", "bf16", "bf16x2"}) {
      const std::string out = type[0] == 'b' ? (type[4] ? "b32" : "b16") : (type[3] ? "b32" : "b16");
      add(std::string(op) + "." + type, {type, type}, {out});
      add(std::string(op) + ".NaN." + type, {type, type}, {out});
    }
  }
  for (const char* op : {"abs.f32", "neg.f32", "abs.ftz.f32", "neg.ftz.f32"}) add(op, {"f32"}, {"f32"});
  for (const char* op : {"abs.f64", "neg.f64"}) add(op, {"f64"}, {"f64"});
  add("copysign.f32", {"f32", "f32"}, {"f32"});
  for (const char* test : {"finite", "infinite", "number", "notanumber", "normal", "subnormal"}) {
    add(std::string("testp.") + test + ".f32", {"f32"}, {"b32"},
        std::string("testp.") + test + ".f32 p0, i0; selp.b32 o0, 1, 0, p0;");
  }
  for (const char* comparison :
       {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}) {
    for (const char* type : {"f32", "f64", "f16", "bf16"}) {
      const std::string op = std::string("setp.") + comparison + "." + type;
      add(op, {type, type}, {"b32"}, op + " p0, i0, i1; selp.b32 o0, 1, 0, p0;");
    }
  }
  add("setp.lt.ftz.f32", {"f32", "f32"}, {"b32"}, "setp.lt.ftz.f32 p0, i0, i1; selp.b32 o0, 1, 0, p0;");
  add("selp.f32", {"f32", "f32", "s32"}, {"f32"}, "setp.lt.s32 p0, i2, 0; selp.f32 o0, i0, i1, p0;");

  // Half precision.
  for (const char* type : {"f16", "f16x2"}) {
    const std::string out = type[3] ? "b32" : "b16";
    for (const char* op : {"add", "sub", "mul", "add.rn", "add.ftz", "mul.sat", "add.rn.ftz.sat"}) {
      add(std::string(op) + "." + type, {type, type}, {out});
    }
    for (const char* op : {"fma.rn", "fma.rn.relu", "fma.rn.sat", "fma.rn.ftz"}) {
      add(std::string(op) + "." + type, {type, type, type}, {out});
    }
    for (const char* op : {"neg", "abs"}) add(std::string(op) + "." + type, {type}, {out});
  }
  for (const char* type : {"bf16", "bf16x2"}) {
    const std::string out = type[4] ? "b32" : "b16";
    for (const char* op : {"add.rn", "sub.rn", "mul.rn"})
      add(std::string(op) + "." + type, {type, type}, {out});
    for (const char* op : {"fma.rn", "fma.rn.relu"})
      add(std::string(op) + "." + type, {type, type, type}, {out});
    for (const char* op : {"neg", "abs"}) add(std::string(op) + "." + type, {type}, {out});
  }

  // Approximations: within the error the PTX manual states (units in the last place of the result
  // of the recording GPU, which is itself within it).
  approximate("ex2.approx.ftz.f32", "f32", 2);
  approximate("ex2.approx.f32", "f32", 2);
  approximate("rcp.approx.ftz.f32", "f32", 1);
  approximate("rcp.approx.f32", "f32", 1);
  approximate("rsqrt.approx.ftz.f32", "f32", 2);
  approximate("rsqrt.approx.f32", "f32", 2);
  approximate("sqrt.approx.ftz.f32", "f32", 2);
  approximate("sqrt.approx.f32", "f32", 2);
  approximate("div.approx.f32", "f32", 2, 2);
  approximate("div.approx.ftz.f32", "f32", 2, 2);
  approximate("div.full.f32", "f32", 2, 2);
  approximate("div.full.ftz.f32", "f32", 2, 2);
  // Absolute errors: compared relative to the largest value, on inputs where that is stated.
  const auto bounded = [&](const std::string& name, double tolerance) {
    Case& c = add(name, {"f32n"}, {"f32"});
    c.grid = 2;
    c.compare = Compare::kRelative;
    c.tolerance = tolerance;
  };
  bounded("sin.approx.ftz.f32", 0x1p-20);
  bounded("cos.approx.ftz.f32", 0x1p-20);
  bounded("tanh.approx.f32", 0x1p-16);
  bounded("lg2.approx.ftz.f32", 0x1p-21);
  bounded("lg2.approx.f32", 0x1p-21);
  {
    Case& c = add("lg2.approx.ftz.f32 edges", {"f32"}, {"f32"}, "lg2.approx.ftz.f32 o0, i0;");
    c.grid = 2;
    c.compare = Compare::kRelative;
    c.tolerance = 0x1p-21;
  }
  {
    Case& c =
        add("ex2.approx.f16x2", {"f16x2"}, {"f16", "f16"}, "ex2.approx.f16x2 r0, i0; mov.b32 {o0, o1}, r0;");
    c.grid = 2;
    c.compare = Compare::kUlp;
    c.tolerance = 2;
  }
  {
    Case& c = add("ex2.approx.ftz.bf16x2", {"bf16x2"}, {"bf16", "bf16"},
                  "ex2.approx.ftz.bf16x2 r0, i0; mov.b32 {o0, o1}, r0;");
    c.grid = 2;
    c.compare = Compare::kUlp;
    c.tolerance = 2;
  }
}

}  // namespace mla::conformance
