// SPDX-License-Identifier: Apache-2.0
// The C++ header, linked and by dlopen. consumer LIBRARY
#include <cstdio>
#include <cstring>
#include <mla_loader.hpp>

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const mla::Bundle linked(mla::Library::linked()), loaded{mla::Library(argv[1])};
  if (std::strcmp(linked.info().name, loaded.info().name) != 0) return 1;
  std::printf("linked and loaded: bundle %s with %u kernels\n", loaded.info().name,
              loaded.info().kernel_count);
  return 0;
} catch (const mla::Error& error) {
  std::printf("error: %s\n", error.what());
  return 1;
}
