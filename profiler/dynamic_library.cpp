// SPDX-License-Identifier: Apache-2.0
// Where shared libraries of the CUDA toolkit and driver are looked for.
#include "profiler/dynamic_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace muse::profiler {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::vector<std::string> split_at_colons(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// In their order.
std::vector<std::string> each_once(const std::vector<std::string>& texts) {
  std::vector<std::string> result;
  for (const std::string& text : texts) {
    if (std::find(result.begin(), result.end(), text) == result.end()) result.push_back(text);
  }
  return result;
}

/// Folders to look in; empty = the loader's own search.
std::vector<std::string> folders() {
  if (std::getenv("MUSE_LIBRARY_PATH"))
    return each_once(split_at_colons(environment("MUSE_LIBRARY_PATH")));
  std::vector<std::string> result{""};
  for (std::string toolkit :
       {environment("CUDA_HOME"), environment("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    while (toolkit.size() > 1 && toolkit.ends_with('/')) toolkit.pop_back();
    if (toolkit.empty()) continue;
    result.push_back(toolkit + "/lib64");
    result.push_back(toolkit + "/extras/CUPTI/lib64");
  }
  return each_once(result);
}

}  // namespace

tl::expected<DynamicLibrary, std::string> DynamicLibrary::open(
    const std::vector<std::string>& names) {
  std::string tried;
  for (const std::string& folder : folders()) {
    for (const std::string& name : names) {
      const std::string path = folder.empty() ? name : folder + "/" + name;
      if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        return DynamicLibrary(handle, path);
      }
      const char* reason = dlerror();
      tried += fmt::format("{}{}", tried.empty() ? "" : "; ", reason ? reason : path);
    }
  }
  if (tried.empty()) tried = "MUSE_LIBRARY_PATH names no folder";
  return tl::unexpected(
      fmt::format("cannot load {}: {}", names.empty() ? "" : names.back(), tried));
}

DynamicLibrary::~DynamicLibrary() {
  if (handle_) dlclose(handle_);
}

void* DynamicLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

}  // namespace muse::profiler
