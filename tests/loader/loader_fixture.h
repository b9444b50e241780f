// SPDX-License-Identifier: Apache-2.0
//
// What the loader's tests share: checks of status and sentence, handles that close themselves, and a
// fixture with a fresh fake driver.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "loader/include/mla_loader.h"
#include "tests/loader/fake_cuda/fake_cuda.h"
#include "tests/loader/test_bundle.h"

namespace mla::test {

// Checks a status and, when it is an error, its whole sentence.
inline void expect_error(mla_status status, mla_status expected, const std::string& sentence) {
  EXPECT_STREQ(mla_status_name(status), mla_status_name(expected));
  EXPECT_EQ(mla_last_error(), sentence);
}

inline testing::AssertionResult is_ok(mla_status status) {
  if (status == MLA_SUCCESS) return testing::AssertionSuccess();
  return testing::AssertionFailure() << mla_status_name(status) << ": " << mla_last_error();
}
#define EXPECT_OK(call) EXPECT_TRUE(mla::test::is_ok(call))
#define ASSERT_OK(call) ASSERT_TRUE(mla::test::is_ok(call))
#define EXPECT_ERROR(call, status, sentence)               \
  do {                                                     \
    SCOPED_TRACE(#call);                                   \
    mla::test::expect_error((call), (status), (sentence)); \
  } while (false)

struct CloseBundle {
  void operator()(mla_bundle* bundle) const { EXPECT_OK(mla_bundle_close(bundle)); }
};
using Bundle = std::unique_ptr<mla_bundle, CloseBundle>;

inline Bundle open_bundle(const TestBundle& files, uint32_t flags = 0) {
  mla_open_options options = MLA_OPEN_OPTIONS_INIT;
  options.flags = flags;
  mla_bundle* bundle = nullptr;
  EXPECT_OK(mla_bundle_open(files.path().c_str(), &options, &bundle));
  return Bundle(bundle);
}

inline mla_problem problem_for(int32_t cc_major, int32_t cc_minor) {
  mla_problem problem = MLA_PROBLEM_INIT;
  problem.cc_major = cc_major;
  problem.cc_minor = cc_minor;
  problem.heads = 128;
  return problem;
}

// Of the context's device, which mla_prepare finds out.
inline mla_problem any_problem() { return problem_for(0, 0); }

// A fresh fake driver with one device (12.0) and one context, current on this thread.
class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_reset();
    context_ = fake_new_context(0);
    fake_set_current(context_);
  }
  void TearDown() override {
    EXPECT_EQ(fake_pushed(), 0) << "the context stack is not as it was";
    EXPECT_EQ(fake_capture_mode(), 0) << "the thread's capture mode is not as it was";
    fake_set_current(nullptr);
  }

  void* context_ = nullptr;
};

}  // namespace mla::test
