# SPDX-License-Identifier: Apache-2.0
# The examples in other languages, where the language is installed; scripts/test installs all of them.
foreach(language rust java lua ruby go)
  foreach(device sm_90 sm_120)
    if(language STREQUAL go AND device STREQUAL sm_90)
      continue() # only compiled, once
    endif()
    add_client(${language}_${device}
               COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/run_language.sh ${language} ${PROJECT_SOURCE_DIR}
                       $<TARGET_FILE:mla_loader> ${bundle}
               ENVIRONMENT "MLA_EMU_DEVICES=${device}:8;MLA_EMU_PTX_PATH=${PROJECT_BINARY_DIR}/ptx;MLA_CUDA_DRIVER_PATH=${emulator}/libcuda.so.1")
    set_tests_properties(client_${language}_${device} PROPERTIES SKIP_RETURN_CODE 77)
    if(MLA_SANITIZE)
      set_tests_properties(client_${language}_${device} PROPERTIES DISABLED ON)
    endif()
  endforeach()
endforeach()
