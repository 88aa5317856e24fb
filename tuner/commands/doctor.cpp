// SPDX-License-Identifier: Apache-2.0
// doctor: everything a sweep relies on, checked one by one, with what to do about it.
#include "tuner/commands/doctor.h"

#include <fmt/format.h>

#include <algorithm>

#include "tuner/commands/command.h"

namespace muse::tuner {
namespace {

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "PASS";
    case Verdict::kWarn:
      return "WARN";
    case Verdict::kFail:
      return "FAIL";
  }
  return "";
}

std::string text(const Examination& examination) {
  size_t width = 0;
  for (const Check& check : examination.checks) width = std::max(width, check.name.size());
  std::string out;
  for (const Check& check : examination.checks) {
    out += fmt::format("{}  {:<{}}  {}\n", name(check.verdict), check.name, width,
                       printable(check.seen));
    if (!check.remedy.empty()) {
      out += fmt::format("{:{}}-> {}\n", "", width + 8, printable(check.remedy));
    }
  }
  if (!examination.tables.empty()) out += "\n" + format_table(examination.tables);
  return out;
}

nlohmann::json to_json(const Examination& examination, const std::string& target) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Check& check : examination.checks) {
    checks.push_back({{"name", check.name},
                      {"verdict", name(check.verdict)},
                      {"seen", check.seen},
                      {"remedy", check.remedy}});
  }
  return {{"target", target}, {"checks", checks}, {"ceilings", examination.ceilings}};
}

bool is_target(const std::string& target) {
  if (target == "auto" || target == "host") return true;
  constexpr size_t kPrefix = 5, kMostDigits = 4;
  return target.starts_with("cuda:") && target.size() > kPrefix &&
         target.size() <= kPrefix + kMostDigits &&
         target.find_first_not_of("0123456789", kPrefix) == std::string::npos;
}

ExitCode run(const std::string& target, bool json, bool quick) {
  if (!is_target(target)) {
    throw CommandError(
        ExitCode::kUsage,
        fmt::format("--target {}: not a target; use auto, host or cuda:N", printable(target)));
  }
  Examination examination;
  examine_host(examination);
  if (target != "host") examine_gpu(target, quick, examination);
  if (json) {
    print_json("doctor", to_json(examination, target));
  } else {
    print(text(examination));
  }
  const bool failed =
      std::any_of(examination.checks.begin(), examination.checks.end(),
                  [](const Check& check) { return check.verdict == Verdict::kFail; });
  return failed ? ExitCode::kEnvironment : ExitCode::kOk;
}

}  // namespace

Command doctor_command() {
  return {
      "doctor", "Check what a sweep relies on, and measure what the GPU can do", [](CLI::App& app) {
        struct Options {
          std::string target = "auto";
          bool json = false, quick = false;
        };
        auto options = std::make_shared<Options>();
        app.add_option("--target", options->target, "auto, host or cuda:N")->capture_default_str();
        app.add_flag("--quick", options->quick, "Fewer samples, smaller gathers");
        add_json(app, options->json);
        return [options] { return run(options->target, options->json, options->quick); };
      }};
}

}  // namespace muse::tuner
