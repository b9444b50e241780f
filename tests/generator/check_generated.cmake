# SPDX-License-Identifier: Apache-2.0
#
# Fails unless FILE holds what PROGRAM prints with ARGUMENTS: as a whole, or, in a Markdown page, as
# a part.
execute_process(COMMAND ${PROGRAM} ${ARGUMENTS} OUTPUT_VARIABLE wanted COMMAND_ERROR_IS_FATAL ANY)
file(READ ${FILE} found)
string(FIND "${found}" "${wanted}" at)
if(at EQUAL -1 OR (NOT at EQUAL 0 AND NOT FILE MATCHES "\\.md$"))
  string(REPLACE ";" " " arguments "${ARGUMENTS}")
  message(FATAL_ERROR "${FILE} is out of date: it does not hold what `mla-gen ${arguments}` prints")
endif()
