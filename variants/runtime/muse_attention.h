// SPDX-License-Identifier: Apache-2.0
// One decode step of attention by the pipeline that a dispatch table chose: the C interface (C99).
/* A program links one emitted table (CMake: muse_add_attention). The calls, in order:

     muse_attention_plan_create      once per problem: choose, check, load; may allocate
     muse_attention_workspace_bytes  how much memory the caller provides
     muse_attention_workspace_init   once per workspace, on the stream that will use it
     muse_attention_run              every step: no allocation, no synchronisation, nothing but
                                     launches; may be captured into a graph

   Every function may be called from any thread. A plan is constant once created: any number of
   streams may run it at once, each with a workspace of its own. A workspace belongs to the plan it
   was initialised for. No function throws; each that can fail returns a status, and
   muse_attention_last_error() says more. */
#ifndef MUSE_ATTENTION_H_
#define MUSE_ATTENTION_H_

#include <stddef.h>
#include <stdint.h>

#define MUSE_ATTENTION_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Rises when a struct below or the meaning of a call changes; structs only grow at their ends. */
#define MUSE_ATTENTION_ABI 1

typedef enum muse_attention_status {
  MUSE_ATTENTION_OK = 0,
  MUSE_ATTENTION_INVALID = 1,     /* an argument is none: a size, a null pointer, struct_bytes */
  MUSE_ATTENTION_UNSUPPORTED = 2, /* no pipeline of the table takes the problem, the base neither */
  MUSE_ATTENTION_WORKSPACE = 3,   /* the workspace is too small or not aligned to 256 bytes */
  MUSE_ATTENTION_DEVICE = 4,      /* the device refused: no such device, no code for it, a launch */
  MUSE_ATTENTION_MEMORY = 5,      /* no host memory to plan with */
  MUSE_ATTENTION_INTERNAL = 6     /* a fault of this library */
} muse_attention_status;

/* Structure and capacity of a step: B requests of L query tokens, T = B * L. */
typedef struct muse_attention_problem {
  size_t struct_bytes;  /* sizeof(muse_attention_problem) */
  int64_t batch;        /* B */
  int64_t q_len;        /* L */
  int64_t num_q_heads;  /* Hq */
  int64_t num_kv_heads; /* Hkv, divides Hq */
  int64_t head_dim;     /* D */
  int64_t page_size;    /* cache rows of a page */
  int64_t max_pages;    /* columns of page_table; capacity is max_pages * page_size tokens */
  int64_t window;       /* tokens a query sees, itself included; 0 = all */
  double rope_theta;    /* 0 = no RoPE */
  double qk_scale_factor;
  double sm_scale;
  int32_t scaled; /* 0: k_scale and v_scale are 1; else they may be anything */
} muse_attention_problem;

/* Fills a problem with the model's values: 16 and 2 heads of 64, pages of 1, no window, no RoPE,
   scales 5.473 and 0.125, cache scales of 1; batch, q_len and max_pages 1. */
MUSE_ATTENTION_API void muse_attention_problem_init(muse_attention_problem* problem);

/* What a step reads and writes, in the device's memory (a CPU's table: in the host's). Of each
   token: q and k heads are divided by their root mean square over D (the root of the mean square +
   1e-5) and rounded to bf16; with RoPE the pairs of neighbouring dims (2j, 2j+1) are rotated by
   cos_sin[position][j] and cos_sin[position][D/2 + j], and rounded again; q becomes e4m3, k / k_scale and v / v_scale become e4m3 and are stored to row cache_loc of the
   caches (row r lies in page r / page_size). A key is its bytes times k_scale, a value times
   v_scale; scores are dot products times sm_scale * qk_scale_factor; a query attends to the
   request's keys up to itself, `window` of them at most. Each head's output is divided by its root
   mean square and multiplied by sigmoid(gate). page_table has the page of every attended key, those
   of the new tokens too. */
typedef struct muse_attention_buffers {
  size_t struct_bytes;          /* sizeof(muse_attention_buffers) */
  const void* qkv;              /* bf16 [T, (2*Hq + 2*Hkv) * D]: q, k, v, gate */
  const int64_t* positions;     /* [T]; read with RoPE alone */
  const int64_t* cache_loc;     /* [T] flat cache row of each new token */
  const int32_t* seq_lens;      /* [B] cached tokens before the step */
  const int32_t* cache_seqlens; /* [B] seq_lens + L */
  const int32_t* cu_seqlens_q;  /* [B + 1]: 0, L, 2L, ... */
  const int32_t* page_table;    /* [B, max_pages]; -1 where unused */
  const float* k_scale;         /* [1] */
  const float* v_scale;         /* [1] */
  const float* cos_sin;         /* f32 [positions, D], cos then sin; null without RoPE */
  void* k_cache;                /* e4m3 [pages, page_size, Hkv, D], the step's rows are written */
  void* v_cache;                /* e4m3, the same */
  void* out;                    /* bf16 [T, Hq * D] */
} muse_attention_buffers;

/* How the choice was made. Texts live as long as the plan. */
typedef struct muse_attention_explanation {
  size_t struct_bytes;    /* sizeof(muse_attention_explanation), set by the caller */
  const char* pipeline;   /* candidates joined by " + " */
  const char* match;      /* exact, near, other device, base */
  const char* guard;      /* tuned, other driver, other compiler, near device, foreign */
  const char* why;        /* a sentence */
  double distance;        /* to the nearest shape that was measured, doublings; also of a base */
  double expected_us;     /* median of what won on the measured shape; NaN for a base by default */
  double low_us, high_us; /* its 95 % interval; NaN likewise */
  double base_us;         /* the base on the same shape; NaN likewise */
  const char* measured;   /* the shape that was measured; "" likewise */
  const char* date;       /* when; "" likewise */
  int32_t launches;       /* of a step */
} muse_attention_explanation;

typedef struct muse_attention_plan muse_attention_plan;

/* For a plan that serves every context, as a captured graph must. */
#define MUSE_ATTENTION_ANY_CONTEXT ((int64_t)0)
/* The calling thread's current device. */
#define MUSE_ATTENTION_CURRENT_DEVICE (-1)

/* Chooses for a problem and the mean context of its requests (tokens with the new ones, rounded
   up; or MUSE_ATTENTION_ANY_CONTEXT). A captured graph that is replayed at any length up to the
   capacity is right whatever was chosen; the context decides speed alone. `device`: a CUDA ordinal;
   not looked at by a CPU's table. On failure *plan is null. Loads the kernels, so that no run
   does. Workspaces are initialised and the plan is run with that device current. */
MUSE_ATTENTION_API muse_attention_status muse_attention_plan_create(
    const muse_attention_problem* problem, int64_t context, int device, muse_attention_plan** plan);
/* Null is allowed. Nothing may run it any more; graphs that it was captured into stay valid. */
MUSE_ATTENTION_API void muse_attention_plan_destroy(muse_attention_plan* plan);

/* Bytes of a workspace; at least 256. 0 for null. */
MUSE_ATTENTION_API size_t muse_attention_workspace_bytes(const muse_attention_plan* plan);

/* Makes memory a workspace of this plan, on the stream (cudaStream_t; null = the default stream; a
   CPU's table does not look at it). Again after a run that did not come to its end. */
MUSE_ATTENTION_API muse_attention_status muse_attention_workspace_init(
    const muse_attention_plan* plan, void* workspace, size_t workspace_bytes, void* stream);

/* Enqueues one step on the stream; a CPU's table runs it before the call returns. */
MUSE_ATTENTION_API muse_attention_status muse_attention_run(const muse_attention_plan* plan,
                                                            const muse_attention_buffers* buffers,
                                                            void* workspace, size_t workspace_bytes,
                                                            void* stream);

MUSE_ATTENTION_API muse_attention_status
muse_attention_explain(const muse_attention_plan* plan, muse_attention_explanation* explanation);

/* "0.1.0, ABI 1, table of NVIDIA H200 (sm_90a), 2026-11-30T...": of library and table. */
MUSE_ATTENTION_API const char* muse_attention_version(void);
/* MUSE_ATTENTION_ABI of the library. */
MUSE_ATTENTION_API int muse_attention_abi(void);
/* "ok", "invalid argument", ...; never null. */
MUSE_ATTENTION_API const char* muse_attention_status_text(muse_attention_status status);
/* What went wrong in this thread's last call that failed; "" before the first. */
MUSE_ATTENTION_API const char* muse_attention_last_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MUSE_ATTENTION_H_ */
