// SPDX-License-Identifier: Apache-2.0
//
// Text of others in messages: names out of files, paths, what a parser says. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace mla {

// `text` as valid UTF-8 that does nothing to a terminal: bytes that are no UTF-8 become \xNN, control
// characters (C0 but for newline and tab, DEL, C1, line separators, changes of direction) \uNNNN. Cut
// between characters, with "..." after, where it would be longer than `most` bytes.
std::string safe_text(std::string_view text, size_t most);

// The same in one line and at most 80 bytes: a name that a message mentions.
std::string printable(std::string_view text);

}  // namespace mla
