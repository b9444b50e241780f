// SPDX-License-Identifier: Apache-2.0
#include "generator/describe.h"

#include <gtest/gtest.h>

#include <functional>

#include "generator/ninja_file.h"
#include "manifest/fields.h"
#include "manifest/sha256.h"
#include "tests/generator/complete_cubin.h"

namespace mla::generator {
namespace {

using test::Bytes;
using test::Constants;
using test::ElfBuilder;
using Lines = std::vector<std::string>;

std::string error_of(const Bytes& image) {
  manifest::Kernel kernel;
  std::string toolkit;
  const Status status = describe(image, "k.cubin", &kernel, &toolkit);
  return status.ok() ? "(no error)" : status.message();
}

TEST(Describe, EveryFieldComesFromTheCubin) {
  const Bytes image = test::complete_cubin().build();
  manifest::Kernel kernel;
  std::string toolkit;
  const Status status = describe(image, "k.cubin", &kernel, &toolkit);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(toolkit, "13.0.88");
  EXPECT_EQ(kernel.id, "cluster_x_sm_120f");
  EXPECT_EQ(kernel.file, "cubins/cluster_x_sm_120f.cubin");
  EXPECT_EQ(kernel.size, image.size());
  EXPECT_EQ(kernel.sha256, sha256_hex(image));
  EXPECT_EQ(kernel.target.name(), "sm_120f");
  EXPECT_EQ(kernel.symbol, "mla_cluster_x");
  const cubin::Facts facts = test::complete_facts();
  for (const manifest::Field& field : cubin::kFields) {
    EXPECT_EQ(manifest::get(kernel.facts, field), manifest::get(facts, field)) << field.name;
  }
  EXPECT_EQ(kernel.resources.registers, 168u);
  EXPECT_EQ(kernel.resources.stack_bytes, 24u);
  EXPECT_EQ(kernel.resources.spill_bytes, manifest::kSpillUnknown);
  EXPECT_EQ(kernel.resources.static_smem, 400u);
  EXPECT_EQ(kernel.min_driver, "580.65.06");
  EXPECT_EQ(kernel.unknown, "");
}

TEST(Describe, WithoutStackThereAreNoSpills) {
  ElfBuilder elf = test::complete_cubin();
  Bytes& info = elf.sections[test::kInfo - 4].content;
  info.clear();
  test::append_record(info, 0x2f, {test::kSymKernel, 168});
  manifest::Kernel kernel;
  std::string toolkit;
  ASSERT_TRUE(describe(elf.build(), "k.cubin", &kernel, &toolkit).ok());
  EXPECT_EQ(kernel.resources.stack_bytes, 0u);
  EXPECT_EQ(kernel.resources.spill_bytes, 0u);
}

TEST(Describe, EveryConstantIsNeeded) {
  for (const auto& [name, value] : test::complete_constants()) {
    Constants constants = test::complete_constants();
    constants.erase(name);
    const std::string expected = name == "info_version" || name == "kind"
                                     ? "those of kernels/common/mla_cubin_info.h"
                                     : "all that kernels/common/mla_cubin_info.h has for a decode kernel";
    EXPECT_EQ(error_of(test::complete_cubin("cluster_x", constants).build()),
              "k.cubin: no constant mla_" + name + "; expected " + expected);
  }
  Constants constants = test::complete_constants();
  constants.erase("rows");
  constants.erase("tile_cost");
  EXPECT_EQ(error_of(test::complete_cubin("cluster_x", constants).build()),
            "k.cubin: no constant mla_rows, mla_tile_cost; expected all that "
            "kernels/common/mla_cubin_info.h has for a decode kernel");
}

TEST(Describe, AMergeKernelHasOtherConstants) {
  cubin::Facts facts = test::complete_facts();
  facts.kind = kind::kMERGE;
  facts.family = family::kMERGE;
  facts.partial_dtype = dtype::kF32;
  facts.params_struct = params_struct::kMERGE;
  Constants constants = test::constants_of(facts);
  EXPECT_EQ(constants.count("rows"), 0u);
  manifest::Kernel kernel;
  std::string toolkit;
  const Status status =
      describe(test::complete_cubin("merge_x", constants).build(), "k.cubin", &kernel, &toolkit);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(kernel.facts.partial_dtype, dtype::kF32);
  EXPECT_EQ(kernel.facts.rows, 0u);
  constants["rows"] = 64;
  EXPECT_EQ(error_of(test::complete_cubin("merge_x", constants).build()),
            "k.cubin: has the constant mla_rows; a merge kernel has none");
}

std::string with(const std::string& name, uint32_t value) {
  Constants constants = test::complete_constants();
  constants[name] = value;
  return error_of(test::complete_cubin("cluster_x", constants).build());
}

TEST(Describe, WrongConstantsAreRefused) {
  EXPECT_EQ(with("info_version", 9), "k.cubin: mla_info_version is 9; this program knows 1");
  EXPECT_EQ(with("kind", 9),
            "k.cubin: mla_kind is 9, which stands for nothing in kernels/common/mla_words.h");
  EXPECT_EQ(with("family", 7),
            "k.cubin: mla_family is 7, which stands for nothing in kernels/common/mla_words.h");
  EXPECT_EQ(with("mma", 0), "k.cubin: mla_mma is 0, which stands for nothing in kernels/common/mla_words.h");
  EXPECT_EQ(with("params_struct", 3),
            "k.cubin: mla_params_struct is 3, which stands for nothing in kernels/common/mla_words.h");
  EXPECT_EQ(with("features", 1u << 20), "k.cubin: mla_features is 1048576; this program knows the bits 1023");
  EXPECT_EQ(with("requires_bits", 4), "k.cubin: mla_requires_bits is 4; this program knows the bits 3");
  EXPECT_EQ(with("rows", 0), "k.cubin: mla_rows is 0; expected an integer from 1 to 1024");
  EXPECT_EQ(with("carveout", 4294967294u), "k.cubin: mla_carveout is -2; expected an integer from -1 to 100");
  EXPECT_EQ(with("tensor_maps", 2), "k.cubin: mla_tensor_maps is 2; expected 0 or 1");
  EXPECT_EQ(with("k_swizzle", 48), "k.cubin: mla_k_swizzle is 48; expected 0, 32, 64 or 128");
  EXPECT_EQ(with("colour", 1),
            "k.cubin: has the constant \"mla_colour\", which kernels/common/mla_cubin_info.h does not have");
  EXPECT_EQ(with("page_size_max", 100),
            "k.cubin: page_size_max is 100; expected a multiple of page_size_multiple, 16");
  EXPECT_EQ(with("k_box", 128), "k.cubin: k_box is 128, 128 bytes; expected at most k_swizzle, 64 bytes");
  EXPECT_EQ(with("threads", 256),
            "k.cubin: mla_threads is 256, the kernel is compiled for blocks of 384 threads");
  EXPECT_EQ(with("cluster_size", 2),
            "k.cubin: mla_cluster_size is 2, the kernel is compiled for clusters of 4");
  EXPECT_EQ(with("params_bytes", 400),
            "k.cubin: mla_params_bytes is 400, the kernel's parameter has 640 bytes");
}

TEST(Describe, WrongCodeIsRefused) {
  const auto changed = [](const std::function<void(ElfBuilder&)>& change) {
    ElfBuilder elf = test::complete_cubin();
    change(elf);
    return error_of(elf.build());
  };
  const auto kernel_info = [](const std::function<void(Bytes&)>& fill) {
    return [=](ElfBuilder& elf) {
      Bytes& bytes = elf.sections[test::kInfoKernel - 4].content;
      bytes.clear();
      fill(bytes);
    };
  };
  EXPECT_EQ(changed([](ElfBuilder& elf) { elf.abi_version = 6; }),
            "k.cubin: ELF header: CUDA ABI version 6 is not known to this program; expected 7 or 8");
  EXPECT_EQ(changed([](ElfBuilder& elf) { elf.flags = 0x06005a04; }),
            "k.cubin: the ELF header says sm_90, the toolkit's note sm_120f");
  EXPECT_EQ(changed([](ElfBuilder& elf) { elf.sections[test::kTkinfo - 4].name = ".note.x"; }),
            "k.cubin: no section .note.nv.tkinfo; expected the toolkit's note, which names the target");
  EXPECT_EQ(changed([](ElfBuilder& elf) {
              elf.sections[test::kTkinfo - 4].content = test::tkinfo_note("x, V13.0.88", "-arch lto_120");
            }),
            "k.cubin: compiled with -arch lto_120; expected a target such as sm_120f");
  EXPECT_EQ(changed([](ElfBuilder& elf) {
              elf.sections[test::kTkinfo - 4].content = test::tkinfo_note("x, V11.8.89", "-arch sm_120f");
            }),
            "k.cubin: toolkit 11.8.89: its oldest driver is not known; expected 12.8, 12.9 or 13.x");
  EXPECT_EQ(changed([](ElfBuilder& elf) { elf.symbols[test::kSymKernel - 1].name = "other"; }),
            "k.cubin: the kernel is called other; expected a name that starts with mla_");
  EXPECT_EQ(changed([](ElfBuilder& elf) { elf.symbols[test::kSymKernel - 1].other = 0; }),
            "k.cubin: has 0 kernels; expected one");
  EXPECT_EQ(changed(kernel_info([](Bytes& bytes) {
              test::append_record(bytes, 0x05, {384, 1, 1});
            })),
            "k.cubin: mla_cluster_size is 4, the kernel is compiled for clusters of 1");
  EXPECT_EQ(changed(kernel_info([](Bytes& bytes) {
              test::append_record(bytes, 0x3d, {4, 1, 1});
            })),
            "k.cubin: the kernel has no __launch_bounds__ and no required block size");
  EXPECT_EQ(changed(kernel_info([](Bytes& bytes) {
              test::append_record(bytes, 0x10, {384, 2, 1});
            })),
            "k.cubin: mla_threads is 384, the kernel is compiled for blocks of 384 threads along x and more "
            "along y or z");
  EXPECT_EQ(changed(kernel_info([](Bytes& bytes) {
              test::append_record(bytes, 0x05, {384, 1, 1});
              test::append_record(bytes, 0x3d, {4, 1, 1});
              test::append_record(bytes, 0x17, {0, 0, 128u << 18});
              test::append_record(bytes, 0x17, {0, 1, 256u << 18});
            })),
            "k.cubin: the kernel has 2 parameters; expected one struct");
}

TEST(Compare, AskedAndBuiltMustAgree) {
  manifest::Kernel built;
  std::string toolkit;
  ASSERT_TRUE(describe(test::complete_cubin().build(), "k.cubin", &built, &toolkit).ok());
  Configuration asked;
  asked.symbol = "mla_cluster_x";
  asked.kind = kind::kDECODE;
  asked.family = family::kCLUSTER;
  asked.target = {120, "f"};
  const auto field = [](const char* name) { return manifest::find_field(name); };
  asked.constants = {{field("rows"), 128}, {field("mma"), mma_form::kPLAIN}, {field("threads"), 384}};
  asked.priority = 3;
  asked.carveout = 100;
  PtxasReport report;
  report.registers = 168;
  report.stack_bytes = 24;
  report.spill_bytes = 16;
  EXPECT_EQ(compare(asked, built, report), Lines{});

  Configuration other = asked;
  other.target.suffix = "a";
  other.symbol = "mla_cluster_y";
  other.kind = kind::kMERGE;
  other.family = family::kHOPPER;
  other.constants = {{field("rows"), 64}, {field("mma"), mma_form::kBLOCK_SCALED}, {field("features"), 3}};
  other.priority = 0;
  other.carveout = -1;
  EXPECT_EQ(
      compare(other, built, report),
      (Lines{"target: the cubin says sm_120f; asked for sm_120a",
             "kernel symbol: the cubin says mla_cluster_x; asked for mla_cluster_y",
             "mla_kind: the cubin says decode; asked for merge",
             "mla_family: the cubin says cluster; asked for hopper",
             "mla_priority: the cubin says 3; asked for 0", "mla_carveout: the cubin says 100; asked for -1",
             "mla_rows: the cubin says 128; asked for 64",
             "mla_mma: the cubin says plain; asked for block_scaled",
             "mla_features: the cubin says lse; asked for lse, pdl"}));

  other = asked;
  other.limits = {{"registers", 167},      {"spill_bytes", 15},      {"stack_bytes", 23},
                  {"static_smem", 399},    {"dynamic_smem", 100351}, {"cubin_bytes", 100},
                  {"bytes_per_worker", 1}, {"max_workers", 256}};
  EXPECT_EQ(
      compare(other, built, report),
      (Lines{"bytes_per_worker: 4096 is more than the limit of 1",
             "cubin_bytes: " + std::to_string(built.size) + " is more than the limit of 100",
             "dynamic_smem: 100352 is more than the limit of 100351",
             "registers: 168 is more than the limit of 167", "spill_bytes: 16 is more than the limit of 15",
             "stack_bytes: 24 is more than the limit of 23",
             "static_smem: 400 is more than the limit of 399"}));

  PtxasReport wrong = report;
  wrong.registers = 167;
  wrong.stack_bytes = 8;
  wrong.complaints = "setmaxnreg ignored\n";
  EXPECT_EQ(compare(asked, built, wrong), (Lines{"registers: ptxas reported 167; the cubin says 168",
                                                 "stack: ptxas reported 8 bytes; the cubin says 24",
                                                 "the assembler complains: setmaxnreg ignored\n"}));
}

constexpr char kLog[] = R"(ptxas info    : 26 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_120f'
ptxas info    : Function properties for k
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 40 bytes cumulative stack size
ptxas info    : Compile time = 4.568 ms
ptxas info    : Function properties for helper
    32 bytes stack frame, 20 bytes spill stores, 0 bytes spill loads
)";

TEST(PtxasLog, IsRead) {
  PtxasReport report;
  const Status status = read_ptxas_log(kLog, "k.log", "k", &report);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(report.registers, 24u);
  EXPECT_EQ(report.stack_bytes, 40u);
  EXPECT_EQ(report.spill_bytes, 24u);  // stores of both functions
  EXPECT_EQ(report.complaints, "");
}

TEST(PtxasLog, ComplaintsAndMissingReports) {
  PtxasReport report;
  const std::string line =
      "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum";
  ASSERT_TRUE(read_ptxas_log(kLog + line + "\n", "k.log", "k", &report).ok());
  EXPECT_EQ(report.complaints, line + "\n");
  EXPECT_EQ(read_ptxas_log(kLog, "k.log", "other", &report).message(),
            "k.log: ptxas reported no registers and spills of other; expected the output of ptxas -v");
  EXPECT_EQ(read_ptxas_log("", "k.log", "k", &report).message(),
            "k.log: ptxas reported no registers and spills of k; expected the output of ptxas -v");
}

TEST(Toolkit, OldestDriver) {
  const auto driver = [](const char* toolkit) {
    std::string text;
    const Status status = min_driver(toolkit, &text);
    return status.ok() ? text : status.message();
  };
  EXPECT_EQ(driver("13.0.88"), "580.65.06");
  EXPECT_EQ(driver("13.1.5"), "580.65.06");
  EXPECT_EQ(driver("12.9.41"), "575.51.03");
  EXPECT_EQ(driver("12.8.61"), "570.26");
  EXPECT_EQ(driver("12.4.131"),
            "toolkit 12.4.131: its oldest driver is not known; expected 12.8, 12.9 or 13.x");
}

TEST(Depfile, IsRead) {
  EXPECT_EQ(parse_depfile("out.ptx : \\\n    /usr/a.h \\\n    ./k/b.h ./c\\ d.h \\\n e$$f.h\n"),
            (Lines{"/usr/a.h", "./k/b.h", "./c d.h", "e$f.h"}));
  EXPECT_EQ(parse_depfile("out.ptx: a.h\n"), Lines{"a.h"});
  EXPECT_EQ(parse_depfile(""), Lines{});
}

TEST(NinjaFile, VirtualArchitectureHasTheSuffixOfTheRealOne) {
  Configuration one;
  one.id = "i";
  one.symbol = "mla_i";
  one.source = "k.cu";
  for (const char* suffix : {"a", "f", ""}) {
    one.target = {120, suffix};
    const std::string text = ninja_text({"/b", "nvcc", "13.0.88"}, {one});
    const std::string virtual_line = std::string("  virtual = compute_120") + suffix + "\n";
    EXPECT_NE(text.find(virtual_line + "  flags"), std::string::npos) << text;
    EXPECT_NE(text.find(virtual_line + "  real = sm_120" + suffix + "\n"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace mla::generator
