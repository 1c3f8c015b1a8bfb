/// The subcommands of `railyard`: one function each, listed in main.cc.
///
/// A command adds its subcommand to `app`; its callback does the work and stores how it ended in `exit_code`. Nothing
/// calls exit, so that everything a command opened is closed again.
#pragma once

#include <CLI/CLI.hpp>

#include "railyard/result.hpp"

namespace railyard::tool {

/// What the process answers to its caller; the same for every subcommand. `launch` passes on its program's own code.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,   ///< the run found a failure: wrong data, a lost operation, a rank that died
  kExitUsage = 2,    ///< an argument or a setting makes no sense
  kExitMachine = 3,  ///< this machine cannot do it: no rail, unknown provider, file not writable, no peer
};

void add_info_command(CLI::App& app, int& exit_code);
void add_launch_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_sim_command(CLI::App& app, int& exit_code);
void add_demo_command(CLI::App& app, int& exit_code);
void add_doctor_command(CLI::App& app, int& exit_code);
void add_topo_command(CLI::App& app, int& exit_code);
void add_top_command(CLI::App& app, int& exit_code);
void add_export_command(CLI::App& app, int& exit_code);
void add_trace_command(CLI::App& app, int& exit_code);
void add_nvshmem_env_command(CLI::App& app, int& exit_code);

/// The code that goes with an error of the library.
int exit_code_for(Status status) noexcept;
/// Prints "railyard COMMAND: error" to stderr and returns the code that goes with it.
int report_error(const char* command, const Error& error);

}  // namespace railyard::tool
