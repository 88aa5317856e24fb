// SPDX-License-Identifier: Apache-2.0
// The C interface: checks of arguments, status codes, and the one place where exceptions end. It
// needs a linked table, so that it is no part of what the tuner links.
#include "variants/runtime/muse_attention.h"

#include <fmt/format.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "variants/runtime/plan.h"

struct muse_attention_plan {
  std::unique_ptr<const muse::runtime::Plan> plan;
};

namespace muse::runtime {
namespace {

constexpr int64_t kRowAlignment = 16;  ///< kernels read and write rows in words of that size

/// Of this thread's last call that failed. A fixed array: a run allocates nothing.
thread_local char last_error[2048] = "";

__attribute__((format(printf, 2, 3))) muse_attention_status fail(muse_attention_status status,
                                                                 const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return status;
}

/// What a call did, or what it threw as a status.
template <class Call>
muse_attention_status guarded(const char* function, const Call& call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return fail(MUSE_ATTENTION_MEMORY, "%s: out of host memory", function);
  } catch (const std::runtime_error& error) {  // a thread, a tensor map: the machine's refusal
    return fail(MUSE_ATTENTION_DEVICE, "%s: %s", function, error.what());
  } catch (const std::exception& error) {
    return fail(MUSE_ATTENTION_INTERNAL, "%s: %s", function, error.what());
  } catch (...) {
    return fail(MUSE_ATTENTION_INTERNAL, "%s: an exception of unknown type", function);
  }
}

Catalogue& catalogue() {
  static Catalogue the_one(linked_table());
  return the_one;
}

/// A struct whose size is not the one that this library was compiled with is of another version.
template <class Struct>
bool has_size(const Struct& given) {
  return given.struct_bytes == sizeof(Struct);
}
template <class Struct>
muse_attention_status wrong_size(const char* function, const char* type, const Struct& given) {
  return fail(
      MUSE_ATTENTION_INVALID,
      "%s: struct_bytes is %zu; allowed: sizeof(%s), %zu here: set it, and compile with the "
      "header of this library",
      function, given.struct_bytes, type, sizeof(Struct));
}

muse_attention_status null_argument(const char* function, const char* name) {
  return fail(MUSE_ATTENTION_INVALID, "%s: %s is null", function, name);
}

muse_attention_status check_workspace(const char* function, const Plan& plan, const void* workspace,
                                      size_t bytes) {
  if (workspace == nullptr || bytes < plan.workspace_bytes()) {
    return fail(MUSE_ATTENTION_WORKSPACE,
                "%s: a workspace of %zu bytes at %p; this plan needs %zu "
                "(muse_attention_workspace_bytes)",
                function, bytes, workspace, plan.workspace_bytes());
  }
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
    return fail(MUSE_ATTENTION_WORKSPACE, "%s: the workspace at %p is not aligned to %d bytes",
                function, workspace, static_cast<int>(kWorkspaceAlignment));
  }
  return MUSE_ATTENTION_OK;
}

/// A member of muse_attention_buffers, and what it must be aligned to.
struct Pointer {
  const char* name;
  const void* address;
  uintptr_t alignment;
};

muse_attention_status check_buffers(const char* function, const Problem& problem,
                                    const muse_attention_buffers& given) {
  const bool rope = problem.rope();
  const Pointer pointers[] = {{"qkv", given.qkv, kRowAlignment},
                              {"cache_loc", given.cache_loc, alignof(int64_t)},
                              {"seq_lens", given.seq_lens, alignof(int32_t)},
                              {"cache_seqlens", given.cache_seqlens, alignof(int32_t)},
                              {"cu_seqlens_q", given.cu_seqlens_q, alignof(int32_t)},
                              {"page_table", given.page_table, alignof(int32_t)},
                              {"k_scale", given.k_scale, alignof(float)},
                              {"v_scale", given.v_scale, alignof(float)},
                              {"k_cache", given.k_cache, kRowAlignment},
                              {"v_cache", given.v_cache, kRowAlignment},
                              {"out", given.out, kRowAlignment},
                              {"positions", given.positions, alignof(int64_t)},
                              {"cos_sin", given.cos_sin, kRowAlignment}};
  const size_t count = std::size(pointers) - (rope ? 0 : 2);  // the last two are RoPE's
  for (size_t i = 0; i < count; ++i) {
    const Pointer& it = pointers[i];
    const auto address = reinterpret_cast<uintptr_t>(it.address);
    if (address != 0 && address % it.alignment == 0) continue;
    return fail(MUSE_ATTENTION_INVALID,
                "%s: %s is %p; allowed: an address that is a multiple of %d", function, it.name,
                it.address, static_cast<int>(it.alignment));
  }
  return MUSE_ATTENTION_OK;
}

Buffers inputs_of(const Problem& problem, const muse_attention_buffers& given) {
  Buffers buffers;
  buffers.qkv = static_cast<const uint16_t*>(given.qkv);
  // A kernel may load positions before it knows that it has no use for them: something that can be
  // read, of the same size.
  buffers.positions = problem.rope() ? given.positions : given.cache_loc;
  buffers.cache_loc = given.cache_loc;
  buffers.seq_lens = given.seq_lens;
  buffers.cache_seqlens = given.cache_seqlens;
  buffers.cu_seqlens_q = given.cu_seqlens_q;
  buffers.page_table = given.page_table;
  buffers.k_scale = given.k_scale;
  buffers.v_scale = given.v_scale;
  buffers.cos_sin = problem.rope() ? given.cos_sin : nullptr;
  buffers.k_cache = static_cast<uint8_t*>(given.k_cache);
  buffers.v_cache = static_cast<uint8_t*>(given.v_cache);
  buffers.out = static_cast<uint16_t*>(given.out);
  return buffers;
}

muse_attention_status device_error(const char* function, const LaunchError& error) {
  return fail(MUSE_ATTENTION_DEVICE, "%s: error %d (%s): %s", function, error.code, error.name,
              error.text);
}

/// The newest row's date; "no shapes" without one.
std::string newest(const LinkedTable& table) {
  std::string date = "no shapes";
  bool first = true;
  for (const dispatch::Table* each : {table.contexts, table.captured}) {
    for (int i = 0; i < each->row_count; ++i) {
      if (!first && date >= each->rows[i].date) continue;
      date = each->rows[i].date;
      first = false;
    }
  }
  return date;
}

}  // namespace
}  // namespace muse::runtime

using namespace muse::runtime;  // NOLINT: the C functions below are outside every namespace

extern "C" {

void muse_attention_problem_init(muse_attention_problem* problem) {
  if (problem == nullptr) return;
  const muse::Problem model;
  *problem = {.struct_bytes = sizeof *problem,
              .batch = model.batch,
              .q_len = model.q_len,
              .num_q_heads = model.num_q_heads,
              .num_kv_heads = model.num_kv_heads,
              .head_dim = model.head_dim,
              .page_size = model.page_size,
              .max_pages = 1,
              .window = model.window,
              .rope_theta = model.rope_theta,
              .qk_scale_factor = model.qk_scale_factor,
              .sm_scale = model.sm_scale,
              .scaled = 0};
}

muse_attention_status muse_attention_plan_create(const muse_attention_problem* problem,
                                                 int64_t context, int device,
                                                 muse_attention_plan** plan) {
  if (plan == nullptr) return null_argument(__func__, "plan");
  *plan = nullptr;
  if (problem == nullptr) return null_argument(__func__, "problem");
  if (!has_size(*problem)) return wrong_size(__func__, "muse_attention_problem", *problem);
  const char* const function = __func__;
  return guarded(function, [&] {
    auto made = Plan::make(catalogue(), *problem, context, device);
    if (!made) {
      return fail(made.error().status, "%s: %s", function, made.error().what.c_str());
    }
    *plan = new muse_attention_plan{*std::move(made)};
    return MUSE_ATTENTION_OK;
  });
}

void muse_attention_plan_destroy(muse_attention_plan* plan) { delete plan; }

size_t muse_attention_workspace_bytes(const muse_attention_plan* plan) {
  return plan == nullptr ? 0 : plan->plan->workspace_bytes();
}

muse_attention_status muse_attention_workspace_init(const muse_attention_plan* plan,
                                                    void* workspace, size_t workspace_bytes,
                                                    void* stream) {
  if (plan == nullptr) return null_argument(__func__, "plan");
  const muse_attention_status status =
      check_workspace(__func__, *plan->plan, workspace, workspace_bytes);
  if (status != MUSE_ATTENTION_OK) return status;
  const LaunchError error = plan->plan->init(workspace, stream);
  return error ? device_error(__func__, error) : MUSE_ATTENTION_OK;
}

muse_attention_status muse_attention_run(const muse_attention_plan* plan,
                                         const muse_attention_buffers* buffers, void* workspace,
                                         size_t workspace_bytes, void* stream) {
  if (plan == nullptr) return null_argument(__func__, "plan");
  if (buffers == nullptr) return null_argument(__func__, "buffers");
  if (!has_size(*buffers)) return wrong_size(__func__, "muse_attention_buffers", *buffers);
  const Plan& it = *plan->plan;
  muse_attention_status status = check_buffers(__func__, it.problem(), *buffers);
  if (status == MUSE_ATTENTION_OK) {
    status = check_workspace(__func__, it, workspace, workspace_bytes);
  }
  if (status != MUSE_ATTENTION_OK) return status;
  const char* const function = __func__;
  return guarded(function, [&] {
    const StepError error = it.run(inputs_of(it.problem(), *buffers), workspace, stream);
    if (!error) return MUSE_ATTENTION_OK;
    if (*error.entry == '\0') return device_error(function, error.launch);
    return fail(MUSE_ATTENTION_DEVICE, "%s: launching %s of %s: error %d (%s): %s", function,
                error.entry, error.candidate, error.launch.code, error.launch.name,
                error.launch.text);
  });
}

muse_attention_status muse_attention_explain(const muse_attention_plan* plan,
                                             muse_attention_explanation* explanation) {
  if (plan == nullptr) return null_argument(__func__, "plan");
  if (explanation == nullptr) return null_argument(__func__, "explanation");
  if (!has_size(*explanation)) {
    return wrong_size(__func__, "muse_attention_explanation", *explanation);
  }
  plan->plan->explain(*explanation);
  return MUSE_ATTENTION_OK;
}

const char* muse_attention_version(void) {
  try {
    static const std::string text = [] {
      const LinkedTable& table = linked_table();
      return fmt::format("{}, ABI {}, table of {} ({}), {}", MUSE_VERSION, MUSE_ATTENTION_ABI,
                         table.device->model, table.device->isa, newest(table));
    }();
    return text.c_str();
  } catch (...) {  // no memory for the text
    return MUSE_VERSION;
  }
}

int muse_attention_abi(void) { return MUSE_ATTENTION_ABI; }

const char* muse_attention_status_text(muse_attention_status status) {
  switch (status) {
    case MUSE_ATTENTION_OK:
      return "ok";
    case MUSE_ATTENTION_INVALID:
      return "invalid argument";
    case MUSE_ATTENTION_UNSUPPORTED:
      return "unsupported problem";
    case MUSE_ATTENTION_WORKSPACE:
      return "workspace too small or not aligned";
    case MUSE_ATTENTION_DEVICE:
      return "device error";
    case MUSE_ATTENTION_MEMORY:
      return "out of host memory";
    case MUSE_ATTENTION_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

const char* muse_attention_last_error(void) { return last_error; }

}  // extern "C"
