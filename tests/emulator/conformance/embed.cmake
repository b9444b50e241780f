# SPDX-License-Identifier: Apache-2.0
#
# cmake -DOUT=<file.inc> -DPTX_DIR=<folder> -DNAMES=a,b -DDIR=<folder> -P embed.cmake
# Writes DIR/<name>.cubin of every name as a C array into OUT, and DIR/<name>.ptx as
# PTX_DIR/<sha256 of the cubin>.ptx, where the emulated driver looks for it.
string(REPLACE "," ";" names "${NAMES}")
file(MAKE_DIRECTORY ${PTX_DIR})
set(text "")
foreach(name ${names})
  file(READ ${DIR}/${name}.cubin bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND text "alignas(16) const unsigned char k_${name}[] = {${bytes}};\n")
  file(SHA256 ${DIR}/${name}.cubin hash)
  file(COPY_FILE ${DIR}/${name}.ptx ${PTX_DIR}/${hash}.ptx)
endforeach()
file(WRITE ${OUT} "${text}")
