// SPDX-License-Identifier: Apache-2.0
//
// mla_loader.hpp, linked and by dlopen, on the fake driver.
#include <utility>

#include "loader/include/mla_loader.hpp"
#include "tests/loader/loader_fixture.h"

namespace mla::test {
namespace {

template <class Call>
void expect_throws(mla_status status, const std::string& sentence, Call call) {
  try {
    call();
    ADD_FAILURE() << "nothing thrown, expected: " << sentence;
  } catch (const mla::Error& error) {
    EXPECT_STREQ(mla_status_name(error.status()), mla_status_name(status));
    EXPECT_EQ(error.what(), sentence);
  }
}

using BindingTest = DriverTest;

TEST_F(BindingTest, LinkedAndLoadedAreOneVersion) {
  EXPECT_EQ(mla::Library::linked().version(), uint32_t{MLA_VERSION});
  EXPECT_EQ(mla::Library(MLA_LIBRARY_FILE).version_string(), MLA_VERSION_STRING);
  EXPECT_EQ(mla::Library::linked().status_name(MLA_ERROR_IO), "MLA_ERROR_IO");
}

TEST_F(BindingTest, AFileThatIsNotTheLibrary) {
  expect_throws(MLA_ERROR_IO, "/no/such.so: cannot open shared object file: No such file or directory",
                [] { mla::Library("/no/such.so"); });
  expect_throws(MLA_ERROR_IO, "library " MLA_FAKE_CUDA_FILE " has no function mla_status_name",
                [] { mla::Library(MLA_FAKE_CUDA_FILE); });
}

TEST_F(BindingTest, ThrowsTheLoadersSentence) {
  const mla::Library library = mla::Library::linked();
  mla_bundle* none = nullptr;
  const mla_status status = mla_bundle_open("/no/such/bundle", nullptr, &none);
  const std::string sentence = mla_last_error();
  EXPECT_NE(sentence, "");
  expect_throws(status, sentence, [&] { mla::Bundle(library, "/no/such/bundle"); });
}

TEST_F(BindingTest, BundlesMoveAndClose) {
  TestBundle files;
  files.add("k");
  files.write();
  mla::Bundle first(mla::Library(MLA_LIBRARY_FILE), files.path().c_str());
  mla_bundle* const handle = first.get();
  mla::Bundle second(std::move(first));
  EXPECT_EQ(first.get(), nullptr);
  EXPECT_EQ(second.get(), handle);
  mla::Bundle third(mla::Library::linked(), files.path().c_str());
  mla_bundle* const replaced = third.get();
  third = std::move(second);
  EXPECT_EQ(third.get(), handle);
  // The one that was replaced is closed.
  EXPECT_EQ(mla_bundle_close(replaced), MLA_ERROR_INVALID_ARGUMENT);
  third.close();
  EXPECT_EQ(third.get(), nullptr);
  EXPECT_EQ(mla_bundle_close(handle), MLA_ERROR_INVALID_ARGUMENT);
  third.close();
}

TEST_F(BindingTest, TheSameAsTheCFunctions) {
  TestBundle files;
  files.add("k");
  files.write();
  mla::Bundle bundle(mla::Library::linked(), files.path().c_str());
  const mla_problem problem = problem_for(12, 0);
  uint32_t index = 0;
  ASSERT_OK(mla_select(bundle.get(), &problem, &index));
  EXPECT_EQ(bundle.select(problem), index);
  EXPECT_LT(index, bundle.info().kernel_count);
  EXPECT_NE(bundle.select_explain(problem).find(bundle.kernel_info(index).id), std::string::npos);

  const mla::Kernel kernel = bundle.prepare(problem);
  EXPECT_EQ(bundle.prepare_index(index).get(), kernel.get());
  EXPECT_EQ(kernel.info().kernel_index, index);
  EXPECT_GE(bundle.workspace_bytes(), kernel.info().workspace_bytes);

  const mla_launch_args args = MLA_LAUNCH_ARGS_INIT;
  const mla_status status = mla_launch(kernel.get(), &args, nullptr);
  const std::string sentence = mla_last_error();
  expect_throws(status, sentence, [&] { kernel.launch(args); });
  const mla_merge_args merge = MLA_MERGE_ARGS_INIT;
  const mla_status merge_status = mla_merge_launch(kernel.get(), &merge, nullptr);
  const std::string merge_sentence = mla_last_error();
  expect_throws(merge_status, merge_sentence, [&] { kernel.merge_launch(merge); });
}

}  // namespace
}  // namespace mla::test
