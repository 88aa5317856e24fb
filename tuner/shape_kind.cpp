// SPDX-License-Identifier: Apache-2.0
// The fields of a shape that its siblings share.
#include "tuner/shape_kind.h"

#include "variants/runtime/dispatch_lookup.h"

namespace muse::tuner {

ShapeKind kind(const Shape& shape) {
  const Problem& p = shape.problem;
  return {p.q_len,
          p.num_q_heads,
          p.num_kv_heads,
          p.head_dim,
          dispatch::detail::page_class(p.page_size),
          p.window > 0 ? 1 : 0,
          p.rope() ? 1 : 0,
          p.scaled() ? 1 : 0};
}

}  // namespace muse::tuner
