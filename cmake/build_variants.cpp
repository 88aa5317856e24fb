// SPDX-License-Identifier: Apache-2.0
// Build tool. Writes variants/runtime/build_variants.h: what the library is built with, which
// emitted tables are held against at compile time. Usage: muse-build-variants FILE
#include <fstream>
#include <iostream>

#include "variants/registry.h"
#include "variants/runtime/dispatch_lookup.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: muse-build-variants FILE\n";
    return 2;
  }
  std::ofstream out(argv[1], std::ios::binary);
  out << "// SPDX-License-Identifier: Apache-2.0\n"
         "// Generated: the variants of this library, each with its ABI and the hash of its "
         "sources;\n"
         "// a host variant's also covers compiler and flags.\n"
         "#pragma once\n\n"
         "// Of the tables that this library reads.\n"
         "#define MUSE_BUILD_DISPATCH_FORMAT "
      << MUSE_DISPATCH_FORMAT << "\n\n#define MUSE_BUILD_VARIANTS(X)";
  for (const muse::Variant* variant : muse::Registry::global().all()) {
    out << " \\\n  X(\"" << variant->name << "\", " << variant->abi << ", \""
        << muse::code_hash(*variant).value_or("") << "\")";
  }
  out << '\n';
  out.close();
  if (out) return 0;
  std::cerr << argv[1] << ": cannot write\n";
  return 3;
}
