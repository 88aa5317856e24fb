// SPDX-License-Identifier: Apache-2.0
// muse-tune: parses the command line, runs one command, turns what went wrong into text and exit
// code.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <sstream>

#include "tuner/build_info.h"
#include "tuner/commands/command.h"

namespace muse::tuner {
namespace {

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (!command.hidden) names.push_back(command.name);
  }
  return names;
}

void say_lines(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) say_error(line);
}

// CLI11 knows that something was not expected, not what was meant.
std::string explain(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const bool extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (!extra && error.get_name() != "RequiredError") {
    const std::vector<CLI::App*> used = app.get_subcommands();
    return fmt::format("{}; see muse-tune {}--help", error.what(),
                       used.empty() ? "" : used.front()->get_name() + " ");
  }
  std::vector<std::string> options = command_names();
  std::string word = argc > 1 ? argv[1] : "";
  const std::vector<CLI::App*> used = app.get_subcommands();
  if (!used.empty()) {
    const std::vector<std::string> extras = app.remaining(true);
    if (extras.empty()) return error.what();
    // An option's value lies there too; the option is what was meant.
    const auto option = std::find_if(extras.begin(), extras.end(),
                                     [](const std::string& e) { return e.starts_with("-"); });
    word = option == extras.end() ? extras.front() : *option;
    options.clear();
    for (const CLI::Option* option : used.front()->get_options()) {
      for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
    }
    word = word.substr(0, word.find('='));
  } else if (argc < 2) {
    return "a command is needed; see muse-tune --help";
  }
  const std::string near = nearest_name(word, options);
  const std::string what =
      used.empty() ? "command" : (word.starts_with("-") ? "option" : "argument");
  return fmt::format("unknown {} '{}'{}", what, printable(word),
                     near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

int run(int argc, char** argv) {
  CLI::App app("Autotuning and profiling harness for muse_attention_decode", "muse-tune");
  app.require_subcommand(1);
  app.set_version_flag("--version", "muse-tune " + build_info().version);
  std::vector<std::pair<const CLI::App*, std::function<ExitCode()>>> bodies;
  for (const Command& command : commands()) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    if (command.hidden) sub->group("");
    bodies.emplace_back(sub, command.setup(*sub));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    say_error(explain(app, error, argc, argv));
    return static_cast<int>(ExitCode::kUsage);
  }
  for (const auto& [sub, body] : bodies) {
    if (sub->parsed()) return static_cast<int>(body());
  }
  throw std::logic_error("no command ran");
}

}  // namespace
}  // namespace muse::tuner

int main(int argc, char** argv) {
  using muse::tuner::ExitCode;
  // A closed pipe is an error of that write, not the end of the sweep.
  signal(SIGPIPE, SIG_IGN);
  try {
    return muse::tuner::run(argc, argv);
  } catch (const muse::tuner::CommandError& error) {
    muse::tuner::say_lines(error.what());
    return static_cast<int>(error.code);
  } catch (const muse::db::Error& error) {
    muse::tuner::say_lines(error.what());
    return static_cast<int>(ExitCode::kEnvironment);
  } catch (const muse::tuner::IoError& error) {
    muse::tuner::say_lines(error.what());
    return static_cast<int>(ExitCode::kEnvironment);
  } catch (const std::exception& error) {
    muse::tuner::say_error(fmt::format("internal: {}", error.what()));
    return static_cast<int>(ExitCode::kInternal);
  }
}
