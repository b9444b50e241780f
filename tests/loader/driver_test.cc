// SPDX-License-Identifier: Apache-2.0
//
// Binding the driver. A process binds once, so each case runs in a child process that has not bound
// yet.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "loader/src/cuda_abi.h"
#include "tests/loader/loader_fixture.h"

namespace mla::test {
namespace {

// What `body` returns when a child process runs it.
std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const std::string text = body();
    if (write(ends[1], text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(1);
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : text + " (the child died)";
}

std::string prepare_result(const TestBundle& files) {
  const Bundle bundle = open_bundle(files);
  const mla_problem problem = any_problem();
  mla_kernel* kernel = nullptr;
  const mla_status status = mla_prepare(bundle.get(), &problem, nullptr, &kernel);
  return std::string(mla_status_name(status)) +
         (status == MLA_SUCCESS ? "" : std::string(": ") + mla_last_error());
}

class DriverBinding : public ::testing::Test {
 protected:
  void SetUp() override {
    files_.add("k");
    files_.write();
  }
  // The result of mla_prepare with this environment.
  std::string with(const std::vector<std::pair<const char*, std::string>>& environment) {
    return in_child([&] {
      for (const auto& [name, value] : environment) setenv(name, value.c_str(), 1);
      setenv("FAKE_CUDA_DEVICE", "12.0", 1);
      return prepare_result(files_);
    });
  }
  TestBundle files_;
};

TEST_F(DriverBinding, Works) { EXPECT_EQ(with({}), "MLA_SUCCESS"); }

// A child made by fork cannot use the parent's driver; the real one answers 3 to every call.
TEST_F(DriverBinding, ForkAfterTheBinding) {
  const std::string forked =
      "this process was made by fork() from one that used CUDA, and cannot use it: start it anew (exec; in "
      "Python the start method \"spawn\"), or fork before the first call that needs the driver";
  const std::string texts = in_child([&] {
    setenv("FAKE_CUDA_DEVICE", "12.0", 1);
    const Bundle bundle = open_bundle(files_);
    const mla_problem problem = any_problem();
    mla_kernel* kernel = nullptr;
    const mla_status prepared = mla_prepare(bundle.get(), &problem, nullptr, &kernel);
    return std::string(mla_status_name(prepared)) + "\n" + in_child([&] {
             mla_kernel* again = nullptr;
             std::string text = mla_status_name(mla_prepare(bundle.get(), &problem, nullptr, &again));
             text += std::string(": ") + mla_last_error() + "\n";
             uint64_t bytes = 0;
             text += mla_status_name(mla_workspace_bytes(bundle.get(), nullptr, &bytes));
             text += std::string(": ") + mla_last_error() + "\n";
             mla_launch_args args = MLA_LAUNCH_ARGS_INIT;
             args.q = args.kv = args.page_table = args.seq_lens = args.out = 4096;
             args.workspace = 8192;
             args.workspace_bytes = uint64_t{1} << 40;
             args.pages = args.batch = args.max_pages_per_seq = 1;
             args.heads = 128;
             args.page_size = 64;
             args.softmax_scale = 1.0f;
             fake_fail("cuStreamGetCtx", 1, 3);
             text += mla_status_name(mla_launch(kernel, &args, nullptr));
             return text + ": " + mla_last_error() + "\n";
           });
  });
  EXPECT_EQ(texts, "MLA_SUCCESS\nMLA_ERROR_DRIVER: " + forked + "\nMLA_ERROR_DRIVER: " + forked +
                       "\nMLA_ERROR_DRIVER: cuStreamGetCtx failed: 3: " + forked + "\n");
}

TEST_F(DriverBinding, OpenAndSelectNeedNone) {
  EXPECT_EQ(in_child([&] {
              setenv("MLA_CUDA_DRIVER_PATH", "/no/libcuda.so.1", 1);
              const Bundle bundle = open_bundle(files_);
              const mla_problem problem = problem_for(12, 0);
              uint32_t index = 9;
              return std::string(mla_status_name(mla_select(bundle.get(), &problem, &index)));
            }),
            "MLA_SUCCESS");
}

TEST_F(DriverBinding, Missing) {
  EXPECT_EQ(with({{"MLA_CUDA_DRIVER_PATH", "/no/libcuda.so.1"}}),
            "MLA_ERROR_NO_DRIVER: the CUDA driver cannot be loaded: /no/libcuda.so.1: cannot open shared "
            "object file: "
            "No such file or directory (MLA_CUDA_DRIVER_PATH is set)");
}

TEST_F(DriverBinding, FailureCanBeRepeatedAndMended) {
  EXPECT_EQ(in_child([&] {
              const std::string fake = getenv("MLA_CUDA_DRIVER_PATH");
              setenv("FAKE_CUDA_DEVICE", "12.0", 1);
              setenv("MLA_CUDA_DRIVER_PATH", "/no/libcuda.so.1", 1);
              const std::string first = prepare_result(files_).substr(0, 19);
              setenv("MLA_CUDA_DRIVER_PATH", fake.c_str(), 1);
              return first + ", " + prepare_result(files_);
            }),
            "MLA_ERROR_NO_DRIVER, MLA_SUCCESS");
}

TEST_F(DriverBinding, TooOldForGetProcAddress) {
  EXPECT_EQ(with({{"MLA_CUDA_DRIVER_PATH", MLA_FAKE_CUDA_ANCIENT_FILE}}),
            "MLA_ERROR_NO_DRIVER: " MLA_FAKE_CUDA_ANCIENT_FILE
            " has no cuGetProcAddress: the driver is older than CUDA 11.3; CUDA 12.0 (driver 525.60.13) or "
            "later is "
            "needed");
}

TEST_F(DriverBinding, FirstFormOfGetProcAddress) {
  EXPECT_EQ(with({{"MLA_CUDA_DRIVER_PATH", MLA_FAKE_CUDA_V1_FILE}, {"FAKE_CUDA_VERSION", "11080"}}),
            "MLA_ERROR_NO_DRIVER: " MLA_FAKE_CUDA_V1_FILE
            " supports CUDA 11.8; CUDA 12.0 (driver 525.60.13) or later is needed");
  EXPECT_EQ(with({{"MLA_CUDA_DRIVER_PATH", MLA_FAKE_CUDA_V1_FILE}}), "MLA_SUCCESS");
}

TEST_F(DriverBinding, RequiredFunctionMissing) {
  EXPECT_EQ(with({{"FAKE_CUDA_MISSING", "cuTensorMapEncodeTiled"}}),
            "MLA_ERROR_NO_DRIVER: " MLA_FAKE_CUDA_FILE
            " (CUDA 13.0) has no cuTensorMapEncodeTiled of CUDA 12.0, which this library needs");
}

TEST_F(DriverBinding, OptionalFunctionsMissing) {
  EXPECT_EQ(with({{"FAKE_CUDA_MISSING",
                   "cuGetErrorName,cuGetErrorString,cuCtxGetId,cuKernelGetParamInfo,cuFuncLoad"}}),
            "MLA_SUCCESS");
  // A CUDA 12.0 driver lacks those of 12.4.
  EXPECT_EQ(with({{"FAKE_CUDA_VERSION", "12000"}}), "MLA_SUCCESS");
}

TEST_F(DriverBinding, NoDevice) {
  EXPECT_EQ(with({{"FAKE_CUDA_INIT", "100"}}), "MLA_ERROR_NO_DRIVER: " MLA_FAKE_CUDA_FILE
                                               " finds no device: cuInit failed: 100 CUDA_ERROR_NO_DEVICE");
  EXPECT_EQ(with({{"FAKE_CUDA_INIT", "999"}}), "MLA_ERROR_DRIVER: cuInit failed: 999 CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(with({{"FAKE_CUDA_INIT", "999"}, {"FAKE_CUDA_MISSING", "cuGetErrorName,cuGetErrorString"}}),
            "MLA_ERROR_DRIVER: cuInit failed: 999");
}

TEST_F(DriverBinding, AsksForTheVersionsItWasCompiledFor) {
  const std::string versions = in_child([&] {
    fake_reset();
    fake_set_current(fake_new_context(0));
    const std::string result = prepare_result(files_);
    if (result != "MLA_SUCCESS") return result;
    std::string wrong;
#define MLA_ASKED(name, version, ...) \
  if (fake_asked_version(#name) != version) wrong += #name ", ";
    MLA_CUDA_REQUIRED(MLA_ASKED)
#undef MLA_ASKED
    return "wrong: " + wrong;
  });
  EXPECT_EQ(versions, "wrong: ");
}

TEST_F(DriverBinding, OptionalFunctionsAreLookedUpWhenNeeded) {
  EXPECT_EQ(in_child([&] {
              fake_reset();
              fake_set_current(fake_new_context(0));
              const std::string result = prepare_result(files_);
              return result + ", cuGetErrorName " + std::to_string(fake_asked_version("cuGetErrorName")) +
                     ", cuFuncLoad " + std::to_string(fake_asked_version("cuFuncLoad"));
            }),
            "MLA_SUCCESS, cuGetErrorName 0, cuFuncLoad 12040");
}

}  // namespace
}  // namespace mla::test
