# SPDX-License-Identifier: Apache-2.0
"""muse_attention.py without PyTorch: plain arrays through the C interface of a CPU's table.

MUSE_ATTENTION_LIBRARY names the libmuse_attention.so.
"""

import ctypes
import math
import os
import pathlib
import random
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "variants/runtime/python"))
import muse_attention  # noqa: E402

QUERY_HEADS, KV_HEADS, DIM = 16, 2, 64
WIDTH = (2 * QUERY_HEADS + 2 * KV_HEADS) * DIM
SCALE = 0.125 * 5.473


def bf16_bits(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def rounded(value):
    return bf16(bf16_bits(value))


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if code & 0x80 else size


POSITIVE = [e4m3(code) for code in range(0x7F)]


def e4m3_code(value):
    """Nearest, ties to even, saturating."""
    size = min(abs(value), 448.0)
    code = min(range(0x7F), key=lambda c: (abs(POSITIVE[c] - size), c & 1))
    return code | (0x80 if math.copysign(1, value) < 0 else 0)


def normed(x):
    r = 1 / math.sqrt(sum(v * v for v in x) / DIM + 1e-5)
    return [rounded(v * r) for v in x]


class Step:
    """One request for each of `lengths` cached tokens, a page a token, rows in a shuffled order."""

    def __init__(self, lengths, seed):
        chance = random.Random(seed)
        self.lengths, self.batch = lengths, len(lengths)
        self.max_pages = max(lengths) + 1
        rows = list(range(self.batch * self.max_pages))
        chance.shuffle(rows)
        self.rows = len(rows)
        self.pages = [rows[b * self.max_pages :][: self.max_pages] for b in range(self.batch)]
        self.qkv = [[bf16_bits(chance.gauss(0, 1)) for _ in range(WIDTH)] for _ in lengths]
        self.caches = [
            [e4m3_code(chance.gauss(0, 1)) for _ in range(self.rows * KV_HEADS * DIM)]
            for _ in range(2)
        ]

    def arrays(self):
        i32, i64 = ctypes.c_int32, ctypes.c_int64
        table = [p if t <= n else -1 for n, pages in zip(self.lengths, self.pages)
                 for t, p in enumerate(pages)]  # fmt: skip
        new_rows = [pages[n] for n, pages in zip(self.lengths, self.pages)]
        flat = [bits for row in self.qkv for bits in row]
        one = (ctypes.c_float * 1)(1)
        return {
            "qkv": aligned(ctypes.c_uint16, flat),
            "cache_loc": (i64 * self.batch)(*new_rows),
            "seq_lens": (i32 * self.batch)(*self.lengths),
            "cache_seqlens": (i32 * self.batch)(*[n + 1 for n in self.lengths]),
            "cu_seqlens_q": (i32 * (self.batch + 1))(*range(self.batch + 1)),
            "page_table": (i32 * len(table))(*table),
            "k_scale": one,
            "v_scale": one,
            "k_cache": aligned(ctypes.c_uint8, self.caches[0]),
            "v_cache": aligned(ctypes.c_uint8, self.caches[1]),
            "out": aligned(ctypes.c_uint16, [0x7FC0] * (self.batch * QUERY_HEADS * DIM)),
        }

    def head(self, request, index):
        return [bf16(bits) for bits in self.qkv[request][index * DIM : (index + 1) * DIM]]

    def cached(self, which, row, head):
        at = (row * KV_HEADS + head) * DIM
        return [e4m3(code) for code in self.caches[which][at : at + DIM]]

    def expected(self):
        """Each head of the output in double precision, on the bytes that attention reads."""
        result = []
        for b, length in enumerate(self.lengths):
            for h in range(QUERY_HEADS):
                g = h // (QUERY_HEADS // KV_HEADS)
                q = [e4m3(e4m3_code(v)) for v in normed(self.head(b, h))]
                keys = [self.cached(0, row, g) for row in self.pages[b][:length]]
                values = [self.cached(1, row, g) for row in self.pages[b][:length]]
                keys.append([e4m3(e4m3_code(v)) for v in normed(self.head(b, QUERY_HEADS + g))])
                new = self.head(b, QUERY_HEADS + KV_HEADS + g)
                values.append([e4m3(e4m3_code(v)) for v in new])
                scores = [SCALE * sum(a * c for a, c in zip(q, key)) for key in keys]
                weights = [math.exp(s - max(scores)) for s in scores]
                total = sum(weights)
                o = [
                    rounded(sum(w * v[d] for w, v in zip(weights, values)) / total)
                    for d in range(DIM)
                ]
                gates = self.head(b, QUERY_HEADS + 2 * KV_HEADS + h)
                r = 1 / math.sqrt(sum(v * v for v in o) / DIM + 1e-5)
                result.append([v * r / (1 + math.exp(-gate)) for v, gate in zip(o, gates)])
        return result


def aligned(kind, values):
    """An array at a multiple of 16 bytes, which rows are read in."""
    size = ctypes.sizeof(kind)
    memory = (kind * (len(values) + 16 // size))()
    skip = -ctypes.addressof(memory) % 16
    array = (kind * len(values)).from_buffer(memory, skip)
    array[:] = values
    return array


class PlainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = muse_attention.Library(os.environ["MUSE_ATTENTION_LIBRARY"])
        if cls.library.cuda:
            raise unittest.SkipTest("the library has a GPU's table: no arrays of the host for it")

    def run_step(self, step, context):
        problem = self.library.problem(batch=step.batch, max_pages=step.max_pages)
        plan = self.library.plan(problem, context)
        memory = ctypes.create_string_buffer(plan.workspace_bytes + 256)
        workspace = -(-ctypes.addressof(memory) // 256) * 256
        plan.init_workspace(workspace, plan.workspace_bytes)
        arrays = step.arrays()
        buffers = muse_attention.Buffers()
        for name, array in arrays.items():
            setattr(buffers, name, ctypes.addressof(array))
        first = None
        for _ in range(2):
            plan.run(buffers, workspace, plan.workspace_bytes)
            out = list(arrays["out"])
            self.assertEqual(first or out, out, "a second run gives the same bits")
            first = out
        return [bf16(bits) for bits in first], arrays

    def assert_right(self, got, expected):
        flat = [v for head in expected for v in head]
        error = sum((a - b) ** 2 for a, b in zip(got, flat))
        self.assertLessEqual(math.sqrt(error / sum(v * v for v in flat)), 3e-2)

    def test_a_step_is_that_of_a_reference_in_double_precision(self):
        step = Step([5, 0, 17], seed=1)
        for context in (muse_attention.ANY_CONTEXT, 9):
            got, arrays = self.run_step(step, context)
            self.assert_right(got, step.expected())
        row = step.pages[0][5]
        at = (row * KV_HEADS + 1) * DIM
        value = [e4m3_code(v) for v in step.head(0, QUERY_HEADS + KV_HEADS + 1)]
        self.assertEqual(list(arrays["v_cache"])[at : at + DIM], value, "the new token is stored")

    def test_explain_says_what_was_chosen(self):
        plan = self.library.plan(self.library.problem(max_pages=64))
        known = plan.explain()
        self.assertIn(" + ", known["pipeline"])
        self.assertIn(known["match"], ("exact", "near", "other device", "base"))
        self.assertGreaterEqual(known["launches"], 1)

    def test_what_the_library_refuses_says_why(self):
        with self.assertRaises(muse_attention.AttentionError) as caught:
            self.library.plan(self.library.problem(batch=0))
        self.assertEqual(caught.exception.status, muse_attention.INVALID)
        self.assertIn("batch", str(caught.exception))
        plan = self.library.plan(self.library.problem(max_pages=64))
        with self.assertRaises(muse_attention.AttentionError) as caught:
            plan.init_workspace(256, 1)
        self.assertEqual(caught.exception.status, muse_attention.WORKSPACE)
        with self.assertRaises(muse_attention.AttentionError) as caught:
            plan.run(muse_attention.Buffers(), None, 0)
        self.assertEqual(caught.exception.status, muse_attention.INVALID)

    def test_what_the_c_types_do_not_hold_is_refused(self):
        problem = self.library.problem(max_pages=1024)
        for refused, name in (
            (lambda: self.library.plan(problem, 2**64 + 128), "context"),
            (lambda: self.library.plan(problem, 128, 2**40), "device"),
            (lambda: self.library.problem(batch=2**64 + 1), "batch"),
            (lambda: self.library.problem(window=-(2**63) - 1), "window"),
            (lambda: self.library.problem(scaled=2**32), "scaled"),
        ):
            with self.assertRaisesRegex(ValueError, f"^{name} is .* has to fit int"):
                refused()
        with self.assertRaisesRegex(TypeError, "context is 1.5; an integer is expected"):
            self.library.plan(problem, 1.5)
        self.library.plan(problem, 128)

    def test_a_problem_has_no_other_fields(self):
        with self.assertRaises(TypeError):
            self.library.problem(batches=2)

    def test_another_library_is_no_attention(self):
        with self.assertRaises(ImportError):
            muse_attention.Library("libc.so.6")

    def test_the_module_needs_no_torch(self):
        self.assertNotIn("torch", sys.modules)


if __name__ == "__main__":
    unittest.main()
