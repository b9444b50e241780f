// SPDX-License-Identifier: Apache-2.0
//
// Forms that no GPU of the recording kind has, against the layout tables of the PTX manual.
#include "tests/emulator/conformance/case.h"

namespace mla::conformance {

void add_sm120_cases(std::vector<Case>*) {}

}  // namespace mla::conformance
