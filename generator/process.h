// SPDX-License-Identifier: Apache-2.0
//
// Child processes.
#pragma once

#include <string>
#include <vector>

#include "manifest/status.h"

namespace mla::generator {

// Runs argv[0] (searched in PATH) in folder `cwd` ("": the current one) and waits for it. With
// `output` its stdout and stderr go there together, else to this process's own. *exit_code is the
// child's exit status, or 128 plus the signal that ended it. The child gets SIGTERM when this process
// dies, however it does. Only for programs with one thread.
Status run_process(const std::vector<std::string>& argv, const std::string& cwd, std::string* output,
                   int* exit_code);

// `text` as one word of a POSIX shell.
std::string shell_quote(const std::string& text);

}  // namespace mla::generator
