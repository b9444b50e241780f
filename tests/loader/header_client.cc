// SPDX-License-Identifier: Apache-2.0
// Compiled as every C++ that mla_loader.hpp promises.
#include <type_traits>

#include "mla_loader.hpp"

static_assert(!std::is_copy_constructible_v<mla::Bundle> && !std::is_copy_assignable_v<mla::Bundle>);
static_assert(std::is_nothrow_move_constructible_v<mla::Bundle>);
static_assert(std::is_nothrow_move_assignable_v<mla::Bundle>);
static_assert(std::is_copy_constructible_v<mla::Kernel> && !std::is_default_constructible_v<mla::Kernel>);
static_assert(std::is_base_of_v<std::runtime_error, mla::Error>);
