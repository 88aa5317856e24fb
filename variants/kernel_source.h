// SPDX-License-Identifier: Apache-2.0
// The text of a CUDA candidate: what NVRTC compiles for a sweep and nvcc for production, to the
// same machine code.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "variants/variant.h"

namespace muse {

/// A source file of the project, embedded in the binary: everything that a stem.cuh reaches.
struct SourceFile {
  std::string_view path;  ///< from the root, as it is included
  std::string_view text;
};
/// Ordered by path.
const std::vector<SourceFile>& embedded_sources();
/// The variant's stem.cuh and every project header that it reaches, by path. Throws
/// std::logic_error where the stem is not embedded.
std::vector<SourceFile> embedded_closure(const Variant& variant);

/// What a configuration is called in C++: "splits_4_tile_kv_64" (tunables sorted); "defaults"
/// without tunables.
std::string configuration_name(const Configuration& configuration);

/// The include of the stem and the configuration as a type of `static constexpr` members in
/// namespace muse::<stage>_<stem>.
std::string configuration_text(const Candidate& candidate);

/// "muse::attention_mma::attend<muse::attention_mma::splits_4_tile_kv_64>".
std::string kernel_expression(const Candidate& candidate, std::string_view entry);

/// Hash over everything that the candidate's machine code is made of, compiler and options apart:
/// embedded_closure(), configuration_text() and a kernel_expression() for each entry. Throws
/// std::logic_error where the stem is not embedded.
std::string source_hash(const Candidate& candidate);

}  // namespace muse
