// SPDX-License-Identifier: Apache-2.0
// The part of NVRTC's C interface that is used, and one compilation through it.
#include "tuner/nvrtc.h"

#include <fmt/format.h>

namespace muse::tuner {
namespace {

// Declared here, so that a build without the toolkit compiles kernels too. The interface is stable:
// functions are only ever added to it.
struct ProgramImpl;
using Program = ProgramImpl*;
using Status = int;
constexpr Status kSuccess = 0;

constexpr int kOldestMajor = 13;
constexpr char kRemedy[] =
    "install NVRTC of the CUDA Toolkit 13.0 or newer, or name the folder of libnvrtc.so.13 in "
    "LD_LIBRARY_PATH or MUSE_LIBRARY_PATH";

}  // namespace

struct Nvrtc::Functions {
  Status (*version)(int* major, int* minor);
  Status (*target_count)(int*);
  Status (*targets)(int*);
  const char* (*error_string)(Status);
  Status (*create)(Program*, const char* text, const char* name, int headers,
                   const char* const* header_texts, const char* const* header_names);
  Status (*destroy)(Program*);
  Status (*add_expression)(Program, const char*);
  Status (*compile)(Program, int options, const char* const* texts);
  Status (*log_size)(Program, size_t*);
  Status (*log)(Program, char*);
  Status (*cubin_size)(Program, size_t*);
  Status (*cubin)(Program, char*);
  Status (*lowered_name)(Program, const char* expression, const char** name);
};

namespace {

/// The first name that the library lacks; empty where all are there.
template <class Functions>
std::string look_up(const profiler::DynamicLibrary& library, Functions& f) {
  std::string missing;
  const auto set = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(name));
    if (!function && missing.empty()) missing = name;
  };
  set(f.version, "nvrtcVersion");
  set(f.target_count, "nvrtcGetNumSupportedArchs");
  set(f.targets, "nvrtcGetSupportedArchs");
  set(f.error_string, "nvrtcGetErrorString");
  set(f.create, "nvrtcCreateProgram");
  set(f.destroy, "nvrtcDestroyProgram");
  set(f.add_expression, "nvrtcAddNameExpression");
  set(f.compile, "nvrtcCompileProgram");
  set(f.log_size, "nvrtcGetProgramLogSize");
  set(f.log, "nvrtcGetProgramLog");
  set(f.cubin_size, "nvrtcGetCUBINSize");
  set(f.cubin, "nvrtcGetCUBIN");
  set(f.lowered_name, "nvrtcGetLoweredName");
  return missing;
}

/// What a pair of size and content functions give.
std::string fetch(Program program, Status (*size_of)(Program, size_t*),
                  Status (*content_of)(Program, char*)) {
  size_t size = 0;
  if (size_of(program, &size) != kSuccess) return {};
  std::string content(size, '\0');
  if (content_of(program, content.data()) != kSuccess) return {};
  return content;
}

}  // namespace

// Warnings about spills are asked for here and not left to `-v`, whose numbers nobody may read.
const std::vector<std::string>& compile_flags() {
  static const std::vector<std::string> flags{"--std=c++17", "--generate-line-info",
                                              "--ptxas-options=-v",
                                              "--ptxas-options=--warn-on-spills"};
  return flags;
}

tl::expected<Nvrtc, std::string> Nvrtc::load() {
  auto library = profiler::DynamicLibrary::open({"libnvrtc.so.13", "libnvrtc.so"});
  if (!library) return tl::unexpected(fmt::format("{}; {}", library.error(), kRemedy));
  auto functions = std::make_shared<Functions>();
  if (const std::string missing = look_up(*library, *functions); !missing.empty()) {
    return tl::unexpected(fmt::format("{} has no {}; {}", library->name(), missing, kRemedy));
  }
  int major = 0, minor = 0;
  if (const Status status = functions->version(&major, &minor); status != kSuccess) {
    return tl::unexpected(fmt::format("{} does not tell its version: {}; {}", library->name(),
                                      functions->error_string(status), kRemedy));
  }
  if (major < kOldestMajor) {
    return tl::unexpected(
        fmt::format("{} is NVRTC {}.{}; {}", library->name(), major, minor, kRemedy));
  }
  int count = 0;
  Status status = functions->target_count(&count);
  std::vector<int> targets(status == kSuccess ? static_cast<size_t>(count) : 0);
  if (status == kSuccess) status = functions->targets(targets.data());
  if (status != kSuccess) {
    return tl::unexpected(fmt::format("{} does not tell its architectures: {}; {}", library->name(),
                                      functions->error_string(status), kRemedy));
  }
  return Nvrtc(*std::move(library), std::move(functions), fmt::format("nvrtc {}.{}", major, minor),
               std::move(targets));
}

NvrtcResult Nvrtc::compile(const NvrtcProgram& input) const {
  const Functions& f = *functions_;
  // The headers' texts are views of whole string literals or strings, but C wants their ends
  // marked.
  std::vector<std::string> texts, names;
  for (const SourceFile& header : input.headers) {
    texts.emplace_back(header.text);
    names.emplace_back(header.path);
  }
  std::vector<const char*> text_pointers, name_pointers, option_pointers;
  for (const std::string& text : texts) text_pointers.push_back(text.c_str());
  for (const std::string& name : names) name_pointers.push_back(name.c_str());
  std::vector<std::string> options{"--gpu-architecture=" + input.architecture};
  options.insert(options.end(), compile_flags().begin(), compile_flags().end());
  for (const std::string& option : options) option_pointers.push_back(option.c_str());

  NvrtcResult result;
  Program program = nullptr;
  Status status =
      f.create(&program, input.text.c_str(), "candidate.cu", static_cast<int>(texts.size()),
               text_pointers.data(), name_pointers.data());
  for (const std::string& expression : input.expressions) {
    if (status == kSuccess) status = f.add_expression(program, expression.c_str());
  }
  if (status == kSuccess) {
    status = f.compile(program, static_cast<int>(options.size()), option_pointers.data());
    result.log = fetch(program, f.log_size, f.log).c_str();  // without the NUL that it counts
  }
  for (const std::string& expression : input.expressions) {
    const char* symbol = nullptr;
    if (status == kSuccess) status = f.lowered_name(program, expression.c_str(), &symbol);
    if (status == kSuccess) result.symbols.emplace_back(symbol);
  }
  if (status == kSuccess) result.cubin = fetch(program, f.cubin_size, f.cubin);
  result.ok = status == kSuccess && !result.cubin.empty();
  if (!result.ok) {
    result.log += fmt::format("{}{}: {}", result.log.empty() ? "" : "\n", toolkit_,
                              status == kSuccess ? "no machine code" : f.error_string(status));
  }
  if (program) f.destroy(&program);
  return result;
}

}  // namespace muse::tuner
