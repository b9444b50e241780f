// SPDX-License-Identifier: Apache-2.0
#include "manifest/status.h"

#include "manifest/text.h"

namespace mla {

Status::Status(StatusKind kind, std::string_view message)
    : kind_(kind), message_(safe_text(message, kMaxMessage)) {}

}  // namespace mla
