/* SPDX-License-Identifier: Apache-2.0
   One step in C whose result is known without a reference: every value is 1, so every head of the
   output is 1 after its norm, times sigmoid(1) of the gate. */
#include <math.h>
#include <muse_attention.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBatch = 2, kContext = 64, kHeads = 16, kKvHeads = 2, kDim = 64 };
enum { kWidth = (2 * kHeads + 2 * kKvHeads) * kDim, kRows = kBatch * kContext };

static uint16_t qkv[kBatch * kWidth];
static int64_t positions[kBatch], cache_loc[kBatch];
static int32_t seq_lens[kBatch], cache_seqlens[kBatch], cu_seqlens_q[kBatch + 1];
static int32_t page_table[kRows];
static uint8_t k_cache[kRows * kKvHeads * kDim], v_cache[kRows * kKvHeads * kDim];
static uint16_t out[kBatch * kHeads * kDim];

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, muse_attention_last_error());
  return 1;
}

static void fill(void) {
  for (int i = 0; i < kBatch * kWidth; ++i) qkv[i] = 0x3F80; /* bf16 1 */
  memset(v_cache, 0x38, sizeof v_cache);                     /* e4m3 1 */
  for (int row = 0; row < kRows; ++row) page_table[row] = row;
  for (int b = 0; b < kBatch; ++b) {
    positions[b] = kContext - 1;
    cache_loc[b] = b * kContext + kContext - 1;
    seq_lens[b] = kContext - 1;
    cache_seqlens[b] = kContext;
    cu_seqlens_q[b + 1] = b + 1;
  }
  memset(out, 0xFF, sizeof out);
}

static float from_bf16(uint16_t bits) {
  const uint32_t word = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

int main(void) {
  const float one = 1;
  fill();
  muse_attention_problem problem;
  muse_attention_problem_init(&problem);
  problem.batch = kBatch;
  problem.max_pages = kContext;
  muse_attention_plan* plan;
  if (muse_attention_plan_create(&problem, kContext, MUSE_ATTENTION_CURRENT_DEVICE, &plan) !=
      MUSE_ATTENTION_OK) {
    return failed("plan");
  }
  muse_attention_explanation why = {0};
  why.struct_bytes = sizeof why;
  if (muse_attention_explain(plan, &why) != MUSE_ATTENTION_OK) return failed("explain");
  printf("match=%s guard=%s pipeline=%s\n", why.match, why.guard, why.pipeline);

  const size_t bytes = (muse_attention_workspace_bytes(plan) + 255) / 256 * 256;
  void* workspace = aligned_alloc(256, bytes);
  if (workspace == NULL) return 1;
  if (muse_attention_workspace_init(plan, workspace, bytes, NULL) != MUSE_ATTENTION_OK) {
    return failed("workspace");
  }
  muse_attention_buffers buffers = {0};
  buffers.struct_bytes = sizeof buffers;
  buffers.qkv = qkv;
  buffers.positions = positions;
  buffers.cache_loc = cache_loc;
  buffers.seq_lens = seq_lens;
  buffers.cache_seqlens = cache_seqlens;
  buffers.cu_seqlens_q = cu_seqlens_q;
  buffers.page_table = page_table;
  buffers.k_scale = &one;
  buffers.v_scale = &one;
  buffers.k_cache = k_cache;
  buffers.v_cache = v_cache;
  buffers.out = out;
  if (muse_attention_run(plan, &buffers, workspace, bytes, NULL) != MUSE_ATTENTION_OK) {
    return failed("run");
  }
  muse_attention_plan_destroy(plan);
  free(workspace);

  const float expected = (float)(1 / (1 + exp(-1.0)));
  for (int i = 0; i < kBatch * kHeads * kDim; ++i) {
    if (!(fabsf(from_bf16(out[i]) - expected) < 0.01f * expected)) {
      fprintf(stderr, "out[%d] is %g, expected %g\n", i, from_bf16(out[i]), expected);
      return 1;
    }
  }
  return 0;
}
