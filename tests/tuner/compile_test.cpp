// SPDX-License-Identifier: Apache-2.0
// Compilation in processes of its own and the cache of cubins, against a compiler that misbehaves.
#include "tuner/compile.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "profiler/dynamic_library.h"
#include "tests/fakes/command.h"
#include "tests/tuner/compile_fixture.h"
#include "tuner/compile_protocol.h"
#include "tuner/console.h"
#include "tuner/kernels.h"
#include "tuner/ptxas_log.h"
#include "variants/kernel_source.h"

namespace muse::tuner {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

using CompileCommand = CompileTest;

TEST_F(CompileTest, GivesTheMachineCodeAndWhatPtxasSaysOfEachKernel) {
  const auto results = compile(options());
  expect_others_fine(results);
  const CompileResult& result = results.at(key_of(64));
  ASSERT_TRUE(result.compiled);
  EXPECT_FALSE(result.cached);
  EXPECT_EQ(result.compiled->cubin, configuration_text(candidate(64)));
  EXPECT_EQ(result.compiled->source_hash, source_hash(candidate(64)));
  EXPECT_EQ(result.compiled->cubin_hash, hash_hex(result.compiled->cubin));
  ASSERT_EQ(result.compiled->kernels.size(), 2u);
  const std::string expression = kernel_expression(candidate(64), "second");
  const CompiledKernel second{.entry = "second",
                              .symbol = "_Z" + std::to_string(expression.size()) + expression,
                              .registers = 40,
                              .shared_bytes = 256,
                              .spill_bytes = 20};
  EXPECT_EQ(result.compiled->kernels[1], second);
  EXPECT_GE(result.compiled->compile_ms, 0);
}

TEST_F(CompileTest, TakesFromTheCacheWhatIsThere) {
  const auto first = compile(options());
  misbehave("crash");
  const auto second = compile(options());
  expect_others_fine(second);
  for (const auto& [text, result] : second) {
    EXPECT_TRUE(result.cached);
    EXPECT_EQ(result.compiled->kernels, first.at(text).compiled->kernels);
    EXPECT_EQ(result.compiled->cubin, first.at(text).compiled->cubin);
    EXPECT_EQ(result.compiled->log, first.at(text).compiled->log);
  }
}

TEST_F(CompileTest, LosesOneCandidateToACompilerThatCrashes) {
  misbehave("crash", "threads_64 ");
  const auto results = compile(options());
  expect_others_fine(results);
  const CompileResult& crashed = results.at(key_of(64));
  EXPECT_EQ(crashed.outcome, Outcome::kCrashed);
  EXPECT_NE(crashed.reason.find("SIGABRT"), std::string::npos) << crashed.reason;
  EXPECT_NE(crashed.reason.find("the stub gives up"), std::string::npos) << crashed.reason;
}

TEST_F(CompileTest, TriesAgainWhatACompilerWasCompilingWhenItWasKilled) {
  misbehave("kill", "threads_64 ");
  setenv("MUSE_STUB_NVRTC_ONCE", (cache_ / "mark").c_str(), 1);
  const auto results = compile(options());
  expect_others_fine(results);
  EXPECT_TRUE(fs::exists(cache_ / "mark"));
  EXPECT_EQ(results.at(key_of(64)).outcome, Outcome::kOk) << results.at(key_of(64)).reason;
}

TEST_F(CompileTest, LeavesOpenWhatACompilerWasKilledOverTwice) {
  misbehave("kill", "threads_64 ");
  const auto results = compile(options());
  expect_others_fine(results);
  EXPECT_EQ(results.at(key_of(64)).outcome, Outcome::kPending);
  EXPECT_EQ(results.at(key_of(64)).reason, "compiler ended by signal 9 (SIGKILL), twice");
}

TEST_F(CompileTest, LosesOneCandidateToACompilerThatHangs) {
  misbehave("hang", "threads_64 ");
  CompileOptions hurried = options();
  hurried.deadline = seconds(3);
  const auto results = compile(hurried);
  expect_others_fine(results);
  EXPECT_EQ(results.at(key_of(64)).outcome, Outcome::kCompileTimeout);
  EXPECT_EQ(results.at(key_of(64)).reason, "not compiled within 3 s");
}

TEST_F(CompileTest, KeepsTheLogOfWhatDoesNotCompile) {
  misbehave("fail", "threads_64 ");
  const auto results = compile(options());
  expect_others_fine(results);
  EXPECT_EQ(results.at(key_of(64)).outcome, Outcome::kCompileFailed);
  EXPECT_EQ(results.at(key_of(64)).reason,
            "candidate.cu(3): error: the stub does not like it\n1 error detected\n\n"
            "nvrtc 99.7: STUB_ERROR");
}

TEST_F(CompileTest, CallsACompilerThatGivesNothingAFailure) {
  misbehave("mute");
  const auto results = compile(options());
  ASSERT_EQ(results.size(), 4u);
  for (const auto& [text, result] : results) {
    EXPECT_EQ(result.outcome, Outcome::kCompileFailed);
    EXPECT_NE(result.reason.find("no machine code"), std::string::npos) << result.reason;
  }
}

TEST_F(CompileTest, ShortensLogsWithoutEnd) {
  misbehave("flood");
  const auto results = compile(options());
  expect_others_fine(results);
  EXPECT_EQ(results.at(key_of(64)).compiled->log.size(), size_t{1} << 16);
}

TEST_F(CompileTest, SaysWhereNvrtcWasSoughtAndWhatToDo) {
  EXPECT_EQ(compiler_toolkit(MUSE_TUNE), kStub);
  setenv("MUSE_LIBRARY_PATH", "/nowhere:/neither", 1);
  const auto missing = compiler_toolkit(MUSE_TUNE);
  ASSERT_FALSE(missing);
  for (const char* part : {"/nowhere/libnvrtc.so.13", "/neither/libnvrtc.so", "CUDA Toolkit 13.0",
                           "MUSE_LIBRARY_PATH"}) {
    EXPECT_NE(missing.error().find(part), std::string::npos) << missing.error();
  }
  setenv("MUSE_LIBRARY_PATH", kStubFolder, 1);
  misbehave("old");
  const auto old = compiler_toolkit(MUSE_TUNE);
  ASSERT_FALSE(old);
  EXPECT_NE(old.error().find("NVRTC 12.7"), std::string::npos) << old.error();
}

TEST_F(CompileTest, FindsNvrtcInAFolderRelativeToTheCallers) {
  fs::create_directory_symlink(kStubFolder, cache_ / "libraries");
  const auto result =
      fakes::run_command({MUSE_TUNE, "compile", MUSE_SOURCE_DIR "/configs/quick.yaml", "--cache",
                          cache_ / "cubins", "--defaults"},
                         {.folder = cache_.path(), .environment = {"MUSE_LIBRARY_PATH=libraries"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(CompileTest, NamesEachFolderThatWasSearchedOnce) {
  unsetenv("MUSE_LIBRARY_PATH");
  setenv("CUDA_HOME", "/usr/local/cuda", 1);
  setenv("CUDA_PATH", "/usr/local/cuda/", 1);
  const auto library = profiler::DynamicLibrary::open({"libmuse_nowhere.so"});
  unsetenv("CUDA_HOME");
  unsetenv("CUDA_PATH");
  ASSERT_FALSE(library);
  const std::string& text = library.error();
  for (const char* folder : {"cuda/lib64/", "cuda/extras/CUPTI/lib64/"}) {
    const size_t first = text.find(folder);
    ASSERT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find(folder, first + 1), std::string::npos) << text;
  }
}

TEST_F(CompileTest, TellsWhatTheCompilerCompilesFor) {
  const auto compiler = find_compiler(MUSE_TUNE);
  ASSERT_TRUE(compiler) << compiler.error();
  EXPECT_EQ(compiler->targets, (std::vector<int>{80, 89, 90, 100}));
  const Toolchain toolchain{.cache = cache_.path(), .toolkit = kStub, .targets = compiler->targets};
  EXPECT_FALSE(unsupported(toolchain, "sm_100f"));
  EXPECT_TRUE(unsupported(toolchain, "sm_91a"));
  // On a device that the compiler is too old for nothing is known of any candidate.
  CompileOptions newer = options();
  newer.architecture = "sm_120a";
  EXPECT_THROW(prepare_kernels(Plan{}, toolchain, newer), IoError);
}

TEST_F(CompileTest, ServesFromTheCacheWithoutACompilerAndLeavesTheRestOpen) {
  ASSERT_EQ(compile_all({candidate(32)}, kStub, options()).size(), 1u);
  setenv("MUSE_LIBRARY_PATH", "/nowhere", 1);
  const auto results = compile(options());
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results.at(key_of(32)).outcome, Outcome::kOk);
  EXPECT_EQ(results.at(key_of(64)).outcome, Outcome::kPending);
  EXPECT_NE(results.at(key_of(64)).reason.find("cannot load libnvrtc.so"), std::string::npos)
      << results.at(key_of(64)).reason;
  // Another version's code would be another measurement.
  setenv("MUSE_LIBRARY_PATH", kStubFolder, 1);
  const auto other = compile_all({candidate(64)}, "nvrtc 98.0", options());
  EXPECT_EQ(other.at(key_of(64)).outcome, Outcome::kPending);
}

TEST_F(CompileTest, EndsEarlyWhereItIsStopped) {
  ASSERT_EQ(compile_all({candidate(32)}, kStub, options()).size(), 1u);
  misbehave("hang");
  std::atomic<int> stop{0};
  CompileOptions stopped = options();
  stopped.stop = &stop;
  stopped.jobs = 1;
  std::thread stopper([&] { stop = 1; });
  const auto results = compile(stopped);
  stopper.join();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(results.at(key_of(32)).cached);
}

TEST_F(CompileTest, ThrowsWhereTheCacheCannotBeWritten) {
  fakes::write_file(cache_ / "file", "");
  CompileOptions blocked = options();
  blocked.cache = cache_.path() / "file";
  try {
    compile(blocked);
    ADD_FAILURE() << "it has been written";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("use --cache DIR"), std::string::npos) << error.what();
  }
  blocked = options();
  blocked.executable = cache_.path() / "no_such_program";
  EXPECT_THROW(compile(blocked), std::runtime_error);
}

TEST(Architecture, IsReadFromItsName) {
  EXPECT_EQ(cc_of("sm_90a"), 90);
  EXPECT_EQ(cc_of("sm_120f"), 120);
  EXPECT_EQ(cc_of("sm_80"), 80);
  for (const char* text : {"", "sm_", "90", "sm_9", "sm_90b", "sm_90aa", "sm_99999", "SM_90",
                           "sm_090a", "sm_80a", "sm_90f"}) {
    EXPECT_EQ(cc_of(text), 0) << text;
  }
}

TEST(PtxasLog, GivesSpillsOfAKernelWithThoseOfItsFunctions) {
  const auto kernels = parse_ptxas_log(
      "ptxas info    : 4 bytes gmem\n"
      "ptxas info    : Compiling entry function '_Za' for 'sm_90a'\n"
      "ptxas info    : Function properties for _Za\n"
      "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Function properties for helper\n"
      "    0 bytes stack frame, 16 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem, 360 bytes cmem[0]\n"
      "ptxas info    : Compiling entry function '_Zb' for 'sm_90a'\n"
      "ptxas info    : Used 8 registers\n");
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels.at("_Za"), (KernelFacts{255, 1024, 28}));
  EXPECT_EQ(kernels.at("_Zb"), (KernelFacts{8, 0, -1}));
  EXPECT_TRUE(parse_ptxas_log("nothing of the kind\n7 bytes spill stores").empty());
}

TEST(PtxasLog, TellsWarningsFromRemarks) {
  EXPECT_EQ(warnings("a.cuh(3): warning #177-D: unused\n  int a;\n"
                     "Remark: The warnings can be suppressed\n"
                     "ptxas warning : Registers are spilled\nptxas info : fine\n"),
            "a.cuh(3): warning #177-D: unused\nptxas warning : Registers are spilled");
}

TEST(CompileMessages, ComeBackAsTheyWent) {
  const CompileRequest request{.variant = "gate/a",
                               .entries = {"x", "y"},
                               .configuration = {{"a", -1}},
                               .toolkit = "nvrtc 13.0",
                               .architecture = "sm_90a",
                               .cache = "/a b/\"c"};
  EXPECT_EQ(decode_compile_request(encode(request)), request);
  const CompileReply reply{CompileReply::Kind::kFailed, "line\nline", {80, 90}};
  EXPECT_EQ(decode_compile_reply(encode(reply)), reply);
  EXPECT_FALSE(decode_compile_request("{}"));
  EXPECT_FALSE(decode_compile_reply("{\"kind\": 9, \"text\": \"\"}"));
  EXPECT_FALSE(decode_compile_reply("[]"));
}

fakes::CommandResult run_compile(const fakes::TemporaryFolder& folder,
                                 std::vector<std::string> arguments,
                                 const std::string& config = MUSE_SOURCE_DIR
                                 "/configs/quick.yaml") {
  std::vector<std::string> argv{MUSE_TUNE, "compile", config, "--cache", folder / "cubins"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return fakes::run_command(argv);
}

TEST_F(CompileCommand, FillsTheCacheAndSaysSo) {
  const auto first = run_compile(cache_, {"--defaults"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.out.find("attention/mma:"), std::string::npos) << first.out;
  EXPECT_NE(first.err.find("sm_90a, nvrtc 99.7"), std::string::npos) << first.err;
  const auto second = run_compile(cache_, {"--defaults", "--json"});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(second.err.find("0 compiled, "), std::string::npos) << second.err;
  EXPECT_NE(second.out.find("\"schema\": \"muse.compile\""), std::string::npos) << second.out;
  EXPECT_NE(second.out.find("\"registers\": 40"), std::string::npos) << second.out;
}

TEST_F(CompileCommand, SaysFirstHowMuchThereIsToDo) {
  const auto loud = run_compile(cache_, {"--variant", "gate/separate", "--defaults"});
  EXPECT_EQ(loud.exit_code, 0) << loud.err;
  const std::string start =
      "muse-tune: 4 candidates for sm_90a into " + (cache_ / "cubins").string() + "; ";
  EXPECT_TRUE(loud.err.starts_with(start)) << loud.err;  // three of the base
  const auto quiet = run_compile(cache_, {"--variant", "gate/separate", "--defaults", "--quiet"});
  EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_EQ(quiet.err.find(" candidates for "), std::string::npos) << quiet.err;
}

TEST_F(CompileCommand, RefusesAVariantThatTheConfigLeavesNoCandidate) {
  fakes::write_file(cache_ / "narrow.yaml", R"(schema: 1
shapes:
  - {batch: 2, q_len: 1, window: 0, rope_theta: 0, context: 64}
variants:
  include: ["*"]
  constraints: ["threads < 1"]
)");
  for (const std::string glob : {"gate/separate", "gate/sep*"}) {
    const auto refused = run_compile(cache_, {"--variant", glob}, cache_ / "narrow.yaml");
    EXPECT_EQ(refused.exit_code, 2) << refused.err;
    EXPECT_EQ(refused.out, "");
    EXPECT_NE(refused.err.find(glob + ": no candidate left by "), std::string::npos) << refused.err;
  }
}

TEST_F(CompileCommand, EndsIncompleteWhereSomeFailAndFailedWhereAllDo) {
  misbehave("fail", "combine_gated");
  const auto some = run_compile(cache_, {"--defaults"});
  EXPECT_EQ(some.exit_code, 5) << some.err;
  EXPECT_NE(some.err.find("error: the stub does not like it"), std::string::npos) << some.err;
  unsetenv("MUSE_STUB_NVRTC_ONLY");
  fs::remove_all(cache_.path() / "cubins");
  const auto all = run_compile(cache_, {"--defaults"});
  EXPECT_EQ(all.exit_code, 4) << all.err;
}

TEST_F(CompileCommand, RefusesWhatItCannotDo) {
  EXPECT_EQ(run_compile(cache_, {"--arch", "hopper"}).exit_code, 2);
  EXPECT_EQ(run_compile(cache_, {"--arch", "sm_75"}).exit_code, 2);
  EXPECT_EQ(run_compile(cache_, {"--variant", "attention/nothing"}).exit_code, 2);
  EXPECT_EQ(run_compile(cache_, {"--deadline", "60"}).exit_code, 2);
  EXPECT_EQ(run_compile(cache_, {"--defaults", "--sample", "3"}).exit_code, 2);
  EXPECT_EQ(run_compile(cache_, {"--defaults", "--seed", "x"}).exit_code, 2);
  setenv("MUSE_LIBRARY_PATH", "/nowhere", 1);
  const auto missing = run_compile(cache_, {});
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_NE(missing.err.find("/nowhere/libnvrtc.so.13"), std::string::npos) << missing.err;
  EXPECT_NE(missing.err.find("MUSE_LIBRARY_PATH"), std::string::npos) << missing.err;
}

TEST_F(CompileCommand, NamesTheArchitecturesThereAreWhereOneIsNot) {
  for (const char* text : {"sm_91a", "sm_090a", "sm_90f", "sm_80a", "hopper"}) {
    const auto refused = run_compile(cache_, {"--arch", text});
    EXPECT_EQ(refused.exit_code, 2) << text;
    EXPECT_NE(refused.err.find("nvrtc 99.7; it compiles for sm_80, sm_89, sm_90a, sm_100a"),
              std::string::npos)
        << refused.err;
  }
  setenv("MUSE_LIBRARY_PATH", "/nowhere", 1);
  EXPECT_EQ(run_compile(cache_, {"--arch", "hopper"}).exit_code, 2);
}

TEST_F(CompileCommand, SamplesTheSameCandidatesForASeed) {
  const auto three = run_compile(cache_, {"--sample", "3", "--seed", "5", "--json"});
  ASSERT_EQ(three.exit_code, 0) << three.err;
  const auto again = run_compile(cache_, {"--sample", "3", "--seed", "5"});
  EXPECT_NE(again.err.find("0 compiled, "), std::string::npos) << again.err;
  const auto other = run_compile(cache_, {"--sample", "3", "--seed", "6"});
  EXPECT_EQ(other.err.find("0 compiled, "), std::string::npos) << other.err;
}

}  // namespace
}  // namespace muse::tuner
