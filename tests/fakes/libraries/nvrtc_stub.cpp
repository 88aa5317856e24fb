// SPDX-License-Identifier: Apache-2.0
// Stands in for libnvrtc: misbehaves as MUSE_STUB_NVRTC says ("hang", "crash", "kill", "fail",
// "flood", "old", "mute"), where MUSE_STUB_NVRTC_ONLY is set only for programs whose text contains
// it; else its machine code is the program's text. Where MUSE_STUB_NVRTC_ONCE names a file, it is
// killed only until that file is there.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0, kCompilationError = 6;
constexpr int kTargets[] = {80, 89, 90, 100};

struct Program {
  std::string text, log;
  std::vector<std::string> expressions, symbols;
};

bool behaves(const char* how) {
  const char* wanted = std::getenv("MUSE_STUB_NVRTC");
  return wanted != nullptr && std::strcmp(wanted, how) == 0;
}

bool behaves(const char* how, const Program& program) {
  const char* only = std::getenv("MUSE_STUB_NVRTC_ONLY");
  return behaves(how) && (only == nullptr || program.text.find(only) != std::string::npos);
}

bool has_been_killed() {
  const char* mark = std::getenv("MUSE_STUB_NVRTC_ONCE");
  return mark != nullptr && open(mark, O_CREAT | O_EXCL | O_CLOEXEC, 0600) < 0;
}

std::string ptxas_log(const std::string& symbol) {
  return "ptxas info    : Compiling entry function '" + symbol +
         "' for 'sm_90a'\n"
         "ptxas info    : Function properties for " +
         symbol +
         "\n"
         "ptxas         .     24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
         "ptxas info    : Used 40 registers, used 1 barriers, 256 bytes smem\n";
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = behaves("old") ? 12 : 99;
  *minor = 7;
  return kSuccess;
}

int nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(std::size(kTargets));
  return kSuccess;
}

int nvrtcGetSupportedArchs(int* targets) {
  std::copy(std::begin(kTargets), std::end(kTargets), targets);
  return kSuccess;
}

const char* nvrtcGetErrorString(int) { return "STUB_ERROR"; }

int nvrtcCreateProgram(Program** program, const char* text, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Program{text, "", {}, {}};
  return kSuccess;
}

int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return kSuccess;
}

int nvrtcAddNameExpression(Program* program, const char* expression) {
  program->expressions.emplace_back(expression);
  return kSuccess;
}

int nvrtcCompileProgram(Program* program, int, const char* const*) {
  if (behaves("hang", *program)) {
    for (;;) pause();
  }
  if (behaves("crash", *program)) {
    std::fputs("the stub gives up\n", stderr);
    std::abort();
  }
  if (behaves("kill", *program) && !has_been_killed()) std::raise(SIGKILL);
  if (behaves("fail", *program)) {
    program->log = "candidate.cu(3): error: the stub does not like it\n1 error detected\n";
    return kCompilationError;
  }
  for (const std::string& expression : program->expressions) {
    program->symbols.push_back("_Z" + std::to_string(expression.size()) + expression);
    program->log += ptxas_log(program->symbols.back());
  }
  if (behaves("flood", *program)) program->log.append(8 << 20, 'x');
  return kSuccess;
}

int nvrtcGetProgramLogSize(Program* program, size_t* size) {
  *size = program->log.size() + 1;
  return kSuccess;
}

int nvrtcGetProgramLog(Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return kSuccess;
}

int nvrtcGetCUBINSize(Program* program, size_t* size) {
  *size = behaves("mute", *program) ? 0 : program->text.size();
  return kSuccess;
}

int nvrtcGetCUBIN(Program* program, char* cubin) {
  size_t size = 0;
  nvrtcGetCUBINSize(program, &size);
  std::memcpy(cubin, program->text.data(), size);
  return kSuccess;
}

int nvrtcGetLoweredName(Program* program, const char* expression, const char** name) {
  for (size_t i = 0; i < program->expressions.size(); ++i) {
    if (program->expressions[i] == expression) *name = program->symbols[i].c_str();
  }
  return kSuccess;
}

}  // extern "C"
