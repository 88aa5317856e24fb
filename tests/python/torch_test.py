# SPDX-License-Identifier: Apache-2.0
"""muse_attention.py on torch tensors, against a float64 reference; on a GPU also in graphs.

MUSE_ATTENTION_LIBRARY names the libmuse_attention.so; its table says which device the test needs.
"""

import dataclasses
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "variants/runtime/python"))
import muse_attention  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

QUERY_HEADS, KV_HEADS, DIM = 16, 2, 64
WIDTH = (2 * QUERY_HEADS + 2 * KV_HEADS) * DIM
SCALE = 0.125 * 5.473


def library():
    if torch is None:
        raise unittest.SkipTest("torch cannot be imported here")
    found = muse_attention.load(os.environ["MUSE_ATTENTION_LIBRARY"])
    if found.cuda and not torch.cuda.is_available():
        raise unittest.SkipTest("the library has a GPU's table, and torch sees no GPU")
    return found


@dataclasses.dataclass
class Case:
    """A step with consistent data: what is called is in `tensors`, by name."""

    lengths: list
    q_len: int = 1
    page_size: int = 1
    window: int = 0
    rope_theta: float = 0.0
    kv_scale: float = 1.0
    capacity: int = 128
    seed: int = 1

    def __post_init__(self):
        cpu = torch.Generator().manual_seed(self.seed)
        batch, tokens = len(self.lengths), len(self.lengths) * self.q_len
        self.max_pages = self.capacity // self.page_size
        pages = torch.randperm(batch * self.max_pages, generator=cpu).view(batch, self.max_pages)
        cache = (batch * self.max_pages, self.page_size, KV_HEADS, DIM)
        self.pages = pages
        self.tensors = {
            "qkv": torch.randn(tokens, WIDTH, generator=cpu).to(torch.bfloat16),
            "page_table": pages.to(torch.int32),
            "k_cache": torch.randn(cache, generator=cpu).to(torch.float8_e4m3fn),
            "v_cache": torch.randn(cache, generator=cpu).to(torch.float8_e4m3fn),
        }
        self.set_lengths(self.lengths)
        if self.rope_theta:
            j = torch.arange(DIM // 2, dtype=torch.float64)
            inverse = (1 / (self.rope_theta ** (2 * j / DIM)).float()).float()
            angle = torch.arange(self.capacity).float()[:, None] * inverse
            self.tensors["cos_sin"] = torch.cat([angle.cos(), angle.sin()], dim=1)
        if self.kv_scale != 1:
            self.tensors["k_scale"] = torch.tensor([self.kv_scale])
            self.tensors["v_scale"] = torch.tensor([self.kv_scale])

    def set_lengths(self, lengths):
        self.lengths = lengths
        at = torch.tensor(lengths)[:, None] + torch.arange(self.q_len)
        rows = self.pages.gather(1, at // self.page_size) * self.page_size + at % self.page_size
        self.tensors["positions"] = at.reshape(-1)
        self.tensors["cache_loc"] = rows.reshape(-1)
        self.tensors["seq_lens"] = torch.tensor(lengths, dtype=torch.int32)

    def options(self):
        return {"window": self.window, "rope_theta": self.rope_theta}

    def on(self, device):
        return {name: tensor.clone().to(device) for name, tensor in self.tensors.items()}

    def head(self, index):
        row = self.tensors["qkv"].double()
        return row[:, index * DIM : (index + 1) * DIM]

    def prepared(self, index, scale=None):
        """RMSNorm, RoPE and E4M3 as kernels round them."""
        x = self.head(index)
        y = x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt()
        y = y.to(torch.bfloat16).double()
        if self.rope_theta:
            table = self.tensors["cos_sin"].double()[self.tensors["positions"]]
            c, s = table[:, : DIM // 2], table[:, DIM // 2 :]
            even, odd = y[:, 0::2], y[:, 1::2]
            y = torch.stack([even * c - odd * s, odd * c + even * s], dim=2).reshape(-1, DIM)
        return self.coded(y, scale)

    def coded(self, y, scale=None):
        if scale is not None and scale != 1:
            y = y.to(torch.bfloat16).double() / scale
        y = y.to(torch.bfloat16).float().clamp(-448, 448)
        return y.to(torch.float8_e4m3fn)

    def expected(self):
        """[T, Hq * D] in float64, on the bytes that attention reads."""
        k = self.tensors["k_cache"].view(torch.uint8).reshape(-1, KV_HEADS, DIM).clone()
        v = self.tensors["v_cache"].view(torch.uint8).reshape(-1, KV_HEADS, DIM).clone()
        rows = self.tensors["cache_loc"]
        for g in range(KV_HEADS):
            new_k = self.prepared(QUERY_HEADS + g, self.kv_scale)
            new_v = self.coded(self.head(QUERY_HEADS + KV_HEADS + g), self.kv_scale)
            k[rows, g] = new_k.view(torch.uint8)
            v[rows, g] = new_v.view(torch.uint8)
        k = k.view(torch.float8_e4m3fn).double() * self.kv_scale
        v = v.view(torch.float8_e4m3fn).double() * self.kv_scale
        out = torch.empty(len(self.lengths) * self.q_len, QUERY_HEADS * DIM, dtype=torch.float64)
        for h in range(QUERY_HEADS):
            g = h // (QUERY_HEADS // KV_HEADS)
            q, gate = self.prepared(h).double(), self.head(QUERY_HEADS + 2 * KV_HEADS + h)
            for n in range(out.shape[0]):
                b, last = n // self.q_len, self.lengths[n // self.q_len] + n % self.q_len
                first = max(0, last - self.window + 1) if self.window else 0
                j = torch.arange(first, last + 1)
                at = self.pages[b, j // self.page_size] * self.page_size + j % self.page_size
                weights = torch.softmax(SCALE * (k[at, g] @ q[n]), dim=0)
                o = (weights @ v[at, g]).to(torch.bfloat16).double()
                normed = o * (o.square().mean() + 1e-5).rsqrt()
                out[n, h * DIM : (h + 1) * DIM] = normed * torch.sigmoid(gate[n])
        return out


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = library()
        cls.device = torch.device("cpu")
        if cls.library.cuda:
            cls.device = torch.device("cuda", torch.cuda.current_device())

    def assert_right(self, case, out):
        expected, got = case.expected(), out.double().cpu()
        self.assertLessEqual(((got - expected).norm() / expected.norm()).item(), 3e-2)
        shape = (-1, QUERY_HEADS, DIM)
        cosine = torch.cosine_similarity(got.view(shape), expected.view(shape), dim=2)
        self.assertGreaterEqual(cosine.min().item(), 0.998)


class TensorTest(Base):
    def test_steps_are_those_of_the_reference(self):
        cases = [
            Case([5, 0, 17]),
            Case([63, 64], q_len=2, page_size=16),
            Case([40, 3], q_len=3, window=16, rope_theta=500000.0),
            Case([9, 30], kv_scale=1.3),
        ]
        for case in cases:
            for context in (None, 32):
                with self.subTest(case=case, context=context):
                    given = case.on(self.device)
                    out = self.library.attention_decode(
                        **given, **case.options(), context=context
                    )
                    self.assert_right(case, out)

    def test_caches_of_either_type_take_the_new_rows(self):
        case = Case([5, 0, 17])
        outs = []
        for dtype in (torch.float8_e4m3fn, torch.uint8):
            given = case.on(self.device)
            given["k_cache"] = given["k_cache"].view(dtype)
            given["v_cache"] = given["v_cache"].view(dtype)
            before = given["v_cache"].view(torch.uint8).clone()
            outs.append(self.library.attention_decode(**given))
            after = given["v_cache"].view(torch.uint8).view(-1, KV_HEADS, DIM)
            changed = (after != before.view(-1, KV_HEADS, DIM)).any(2).any(1).nonzero().view(-1)
            self.assertEqual(
                sorted(changed.tolist()), sorted(case.tensors["cache_loc"].tolist())
            )
        self.assertTrue(torch.equal(outs[0], outs[1]))

    def test_out_is_written_and_returned_and_runs_repeat(self):
        case = Case([5, 0, 17])
        given = case.on(self.device)
        out = torch.full((3, QUERY_HEADS * DIM), torch.nan, dtype=torch.bfloat16).to(self.device)
        self.assertIs(self.library.attention_decode(**given, out=out), out)
        self.assertTrue(torch.equal(self.library.attention_decode(**given), out))
        given["positions"] = None
        self.assertTrue(torch.equal(self.library.attention_decode(**given), out))

    def test_what_does_not_fit_is_named(self):
        case = Case([5, 0, 17])
        edits = [
            ("qkv", lambda t: t.float(), TypeError, "qkv is torch.float32; torch.bfloat16"),
            ("qkv", lambda t: t[:2], ValueError, "qkv has 2 rows and page_table 3"),
            ("qkv", lambda t: t[:, :-1], ValueError, "columns"),
            ("qkv", lambda t: t[None], ValueError, "qkv has 3 dimensions; 2 expected"),
            ("seq_lens", lambda t: t.long(), TypeError, "seq_lens is torch.int64"),
            ("seq_lens", lambda t: t[:1], ValueError, "seq_lens is [1]; [3] expected"),
            ("cache_loc", lambda t: None, TypeError, "cache_loc is NoneType"),
            ("k_cache", lambda t: t.half(), TypeError, "k_cache is torch.float16"),
            ("page_table", lambda t: t.t().contiguous().t(), ValueError, "not contiguous"),
        ]
        for name, edit, kind, text in edits:
            with self.subTest(name=name, text=text):
                given = case.on(self.device)
                given[name] = edit(given[name])
                with self.assertRaises(kind) as caught:
                    self.library.attention_decode(**given)
                self.assertIn(text, str(caught.exception))
        given = case.on(self.device)
        for options, text in [
            ({"rope_theta": 500000.0}, "cos_sin is None"),
            ({"k_scale": torch.ones(1, device=self.device)}, "both or neither"),
            ({"context": 0}, "context is 0"),
        ]:
            with self.assertRaises(ValueError) as caught:
                self.library.attention_decode(**given, **options)
            self.assertIn(text, str(caught.exception))

    def test_tensors_of_another_device_are_refused(self):
        given = Case([5]).on("meta" if not self.library.cuda else "cpu")
        with self.assertRaises(ValueError) as caught:
            self.library.attention_decode(**given)
        self.assertIn("has the table of a", str(caught.exception))

    def test_few_plans_serve_many_contexts(self):
        case = Case([5, 0, 17])
        given = case.on(self.device)
        for context in range(1, 129):
            out = self.library.attention_decode(**given, context=context)
        self.assert_right(case, out)
        self.assertLessEqual(len(self.library._plans._all), 64)


class GraphTest(Base):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not cls.library.cuda:
            raise unittest.SkipTest("graphs and streams are a GPU's")

    def captured(self, case, given, stream=None):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = self.library.attention_decode(**given, **case.options())
        return graph, out

    def replay_at(self, case, given, graph, out, lengths):
        case.set_lengths(lengths)
        for name in ("positions", "cache_loc", "seq_lens"):
            given[name].copy_(case.tensors[name])
        for name in ("k_cache", "v_cache"):
            given[name].view(torch.uint8).copy_(case.tensors[name].view(torch.uint8))
        graph.replay()
        torch.cuda.synchronize()
        self.assert_right(case, out)

    def test_a_graph_is_right_at_any_length(self):
        for prepared in (False, True):
            with self.subTest(prepared=prepared):
                case = Case([5, 0, 17], capacity=2048)
                given = case.on(self.device)
                self.library.attention_decode(**given)  # loads
                stream = torch.cuda.Stream()
                if prepared:
                    order = ("qkv", "positions", "cache_loc", "seq_lens", "page_table", "k_cache")
                    self.library.prepare(
                        *(given[name] for name in order), given["v_cache"], stream=stream
                    )
                torch.cuda.synchronize()
                graph, out = self.captured(case, given, stream)
                for lengths in ([5, 0, 17], [2047, 1, 900], [0, 0, 0], [64, 2000, 63]):
                    self.replay_at(case, given, graph, out, lengths)

    def test_a_capture_of_an_unknown_problem_says_what_to_do(self):
        case = Case([5, 0, 17, 2, 3, 4, 5])
        given = case.on(self.device)
        with self.assertRaises(RuntimeError) as caught:
            self.captured(case, given)
        self.assertIn("before, which loads its kernels", str(caught.exception))

    def test_two_graphs_of_one_pool_do_not_disturb_each_other(self):
        cases = [Case([500, 3, 900], capacity=1024), Case([5, 700, 17], capacity=1024, seed=2)]
        given = [case.on(self.device) for case in cases]
        for one in given:
            self.library.attention_decode(**one)
        torch.cuda.synchronize()
        graphs = [self.captured(case, one) for case, one in zip(cases, given)]
        for _ in range(3):
            for case, (graph, out) in zip(cases, graphs):
                graph.replay()
                torch.cuda.synchronize()
                self.assert_right(case, out)

    def test_two_streams_at_once_give_the_same_bits_as_one(self):
        cases = [Case([900, 3, 2000], capacity=2048), Case([5, 1700, 17], capacity=2048, seed=2)]
        given = [case.on(self.device) for case in cases]
        alone = [self.library.attention_decode(**one) for one in given]
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in cases]
        outs = [[], []]
        for _ in range(50):
            for i, stream in enumerate(streams):
                outs[i].append(self.library.attention_decode(**given[i], stream=stream))
        torch.cuda.synchronize()
        for i, all_of_it in enumerate(outs):
            self.assert_right(cases[i], all_of_it[0])
            for out in all_of_it:
                self.assertTrue(torch.equal(out, alone[i]))

    def test_a_stream_may_be_an_address(self):
        case = Case([5, 0, 17])
        given = case.on(self.device)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        out = self.library.attention_decode(**given, stream=stream.cuda_stream)
        torch.cuda.synchronize()
        self.assert_right(case, out)


if __name__ == "__main__":
    unittest.main()
