# SPDX-License-Identifier: Apache-2.0
"""Decode attention by an emitted dispatch table, for PyTorch: the C interface through ctypes.

    import muse_attention
    library = muse_attention.Library("b/libmuse_attention.so")
    out = library.attention_decode(qkv, positions, cache_loc, seq_lens, page_table, k, v)

PyTorch is imported where a tensor is at hand, not here: Library and Plan work without it, on
addresses. A step enqueues on the tensors' device and the current stream, and waits for nothing.

Under torch.cuda.graph: run the problem once before (as PyTorch's own warm-up does), which loads the
kernels. A graph takes a plan for every context and is right at any length up to the page table's
capacity. Its workspace is the one that prepare() made on the capturing stream, or else is taken
from the graph's own pool and cleared at each replay. Graphs captured on one stream after prepare()
share a workspace, thus replay one after the other.
"""

import collections
import ctypes
import math
import operator
import re
import threading

__all__ = ["AttentionError", "Library", "Plan", "attention_decode", "load"]

ABI = 1
ANY_CONTEXT = 0
CURRENT_DEVICE = -1
WORKSPACE_ALIGNMENT = 256

OK, INVALID, UNSUPPORTED, WORKSPACE, DEVICE, MEMORY, INTERNAL = range(7)


class Problem(ctypes.Structure):
    """muse_attention_problem: structure and capacity of a step."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("batch", ctypes.c_int64),
        ("q_len", ctypes.c_int64),
        ("num_q_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("page_size", ctypes.c_int64),
        ("max_pages", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("rope_theta", ctypes.c_double),
        ("qk_scale_factor", ctypes.c_double),
        ("sm_scale", ctypes.c_double),
        ("scaled", ctypes.c_int32),
    ]


class Buffers(ctypes.Structure):
    """muse_attention_buffers: addresses in the device's memory (a CPU's table: in the host's)."""

    _fields_ = [("struct_bytes", ctypes.c_size_t)] + [
        (name, ctypes.c_void_p)
        for name in (
            "qkv",
            "positions",
            "cache_loc",
            "seq_lens",
            "cache_seqlens",
            "cu_seqlens_q",
            "page_table",
            "k_scale",
            "v_scale",
            "cos_sin",
            "k_cache",
            "v_cache",
            "out",
        )
    ]


class _Explanation(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("pipeline", ctypes.c_char_p),
        ("match", ctypes.c_char_p),
        ("guard", ctypes.c_char_p),
        ("why", ctypes.c_char_p),
        ("distance", ctypes.c_double),
        ("expected_us", ctypes.c_double),
        ("low_us", ctypes.c_double),
        ("high_us", ctypes.c_double),
        ("base_us", ctypes.c_double),
        ("measured", ctypes.c_char_p),
        ("date", ctypes.c_char_p),
        ("launches", ctypes.c_int32),
    ]


class AttentionError(RuntimeError):
    """A call of the library failed; `status` is its code."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


_SIGNATURES = {
    "muse_attention_problem_init": (None, [ctypes.POINTER(Problem)]),
    "muse_attention_plan_create": (
        ctypes.c_int,
        [ctypes.POINTER(Problem), ctypes.c_int64, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)],
    ),
    "muse_attention_plan_destroy": (None, [ctypes.c_void_p]),
    "muse_attention_workspace_bytes": (ctypes.c_size_t, [ctypes.c_void_p]),
    "muse_attention_workspace_init": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p],
    ),
    "muse_attention_run": (
        ctypes.c_int,
        [
            ctypes.c_void_p,
            ctypes.POINTER(Buffers),
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        ],
    ),
    "muse_attention_explain": (ctypes.c_int, [ctypes.c_void_p, ctypes.POINTER(_Explanation)]),
    "muse_attention_version": (ctypes.c_char_p, []),
    "muse_attention_abi": (ctypes.c_int, []),
    "muse_attention_status_text": (ctypes.c_char_p, [ctypes.c_int]),
    "muse_attention_last_error": (ctypes.c_char_p, []),
}


def _integer(name, value, kind):
    """The value where it is an integer that the C type holds; ctypes alone would cut it short."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; an integer is expected") from None
    bits = 8 * ctypes.sizeof(kind)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"{name} is {number}; it has to fit int{bits}_t of the C interface")
    return number


class Plan:
    """What the table chose for a problem, its kernels loaded. Constant; any thread may run it."""

    def __init__(self, library, problem, context=ANY_CONTEXT, device=CURRENT_DEVICE):
        context = _integer("context", context, ctypes.c_int64)
        device = _integer("device", device, ctypes.c_int)
        self._library = library  # it must outlive the plan
        self._handle = ctypes.c_void_p()
        library._check(
            library._c.muse_attention_plan_create(
                ctypes.byref(problem), context, device, ctypes.byref(self._handle)
            )
        )
        self.workspace_bytes = library._c.muse_attention_workspace_bytes(self._handle)

    def __del__(self):
        if getattr(self, "_handle", None):
            self._library._c.muse_attention_plan_destroy(self._handle)
            self._handle = None

    def init_workspace(self, address, size, stream=None):
        """Makes `size` bytes at `address` a workspace of this plan, on the stream (an address)."""
        self._library._check(
            self._library._c.muse_attention_workspace_init(self._handle, address, size, stream)
        )

    def run(self, buffers, workspace, workspace_bytes, stream=None):
        """Enqueues one step; `buffers` is a Buffers. A CPU's table runs it before this returns."""
        buffers.struct_bytes = ctypes.sizeof(Buffers)
        self._library._check(
            self._library._c.muse_attention_run(
                self._handle, ctypes.byref(buffers), workspace, workspace_bytes, stream
            )
        )

    def explain(self):
        """How the choice was made, by name; None for a number or text that is not known."""
        it = _Explanation(struct_bytes=ctypes.sizeof(_Explanation))
        self._library._check(
            self._library._c.muse_attention_explain(self._handle, ctypes.byref(it))
        )
        known = {}
        for name, _ in it._fields_[1:]:
            value = getattr(it, name)
            if isinstance(value, bytes):
                value = value.decode()
            missing = value == "" or (isinstance(value, float) and math.isnan(value))
            known[name] = None if missing else value
        return known


class _Workspaces:
    """Plans with their workspaces by (plan, stream), the least recently used ones dropped. What is
    dropped goes back to PyTorch, which hands it out again in its stream's order."""

    def __init__(self, most):
        self._most = most
        self._all = collections.OrderedDict()

    def get(self, key):
        found = self._all.get(key)
        if found is not None:
            self._all.move_to_end(key)
        return found

    def put(self, key, value):
        self._all[key] = value
        while len(self._all) > self._most:
            self._all.popitem(last=False)


class Library:
    """A libmuse_attention.so that was built from an emitted table.

    path: the shared library. most: how many plans, and how many of their workspaces, are kept for
    calls that name a context; those for every context stay, as graphs may hold them.
    """

    def __init__(self, path, most=64):
        self._c = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            try:
                function = getattr(self._c, name)
            except AttributeError:
                raise ImportError(f"{path}: no '{name}' in it: it is no libmuse_attention.so")
            function.restype, function.argtypes = result, arguments
        if self._c.muse_attention_abi() != ABI:
            raise ImportError(
                f"{path}: ABI {self._c.muse_attention_abi()}, but this module is for {ABI}: take "
                "the muse_attention.py of the same version"
            )
        self.path = str(path)
        self.version = self._c.muse_attention_version().decode()
        #: Whether the table is a GPU's.
        self.cuda = re.search(r"\(sm_[0-9]+[a-z]*\)", self.version) is not None
        self._lock = threading.Lock()
        self._plans = _Workspaces(most)
        self._workspaces = _Workspaces(most)
        self._any_plans, self._any_workspaces = {}, {}
        self._constants = {}

    def problem(self, **fields):
        """A Problem with the model's values and these."""
        problem = Problem()
        self._c.muse_attention_problem_init(ctypes.byref(problem))
        kinds = dict(Problem._fields_)
        for name, value in fields.items():
            if name not in kinds:
                raise TypeError(f"a problem has no '{name}'")
            if kinds[name] is not ctypes.c_double:
                value = _integer(name, value, kinds[name])
            setattr(problem, name, value)
        return problem

    def plan(self, problem, context=ANY_CONTEXT, device=CURRENT_DEVICE):
        """A Plan of its own for the problem; see muse_attention_plan_create()."""
        return Plan(self, problem, context, device)

    def _check(self, status):
        if status != OK:
            what = self._c.muse_attention_last_error().decode()
            name = self._c.muse_attention_status_text(status).decode()
            raise AttentionError(status, f"{name}: {what}")

    # --- PyTorch ---------------------------------------------------------------------------------

    def attention_decode(
        self,
        qkv,
        positions,
        cache_loc,
        seq_lens,
        page_table,
        k_cache,
        v_cache,
        *,
        window=0,
        rope_theta=0.0,
        cos_sin=None,
        qk_scale_factor=5.473,
        sm_scale=0.125,
        k_scale=None,
        v_scale=None,
        cache_seqlens=None,
        cu_seqlens_q=None,
        context=None,
        out=None,
        stream=None,
    ):
        """One decode step of B requests with L query tokens each, T = B * L; gives `out`.

        qkv         bf16 [T, (2*Hq + 2*Hkv) * D]: q, k, v, gate
        positions   i64 [T], read with RoPE alone: None will do without it
        cache_loc   i64 [T], flat cache row of each new token
        seq_lens    i32 [B], cached tokens before the step
        page_table  i32 [B, max_pages], -1 where unused
        k_cache, v_cache  float8_e4m3fn or uint8 [pages, page_size, Hkv, D]; the step's rows are
                    written
        cos_sin     f32 [positions, D], with rope_theta alone
        k_scale, v_scale  f32 [1]; both or neither, None = 1
        cache_seqlens, cu_seqlens_q  i32 [B] and [B + 1]; made of seq_lens where not given
        context     mean of the requests' tokens with the new ones, which the choice is made for;
                    None: one choice for every context
        out         bf16 [T, Hq * D], made where not given
        stream      a torch.cuda.Stream or an address; None = the current one

        Raises TypeError or ValueError for tensors that do not fit, AttentionError for what the
        library refuses. The tensors have to live until the step has run, as with any kernel.
        """
        torch = _torch()
        given = {
            "qkv": qkv,
            "positions": positions,
            "cache_loc": cache_loc,
            "seq_lens": seq_lens,
            "page_table": page_table,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "cos_sin": cos_sin,
            "k_scale": k_scale,
            "v_scale": v_scale,
            "cache_seqlens": cache_seqlens,
            "cu_seqlens_q": cu_seqlens_q,
            "out": out,
        }
        sizes = _sizes(torch, given, rope_theta)
        device = qkv.device
        self._check_device(device)
        with torch.no_grad(), _on(torch, device, stream) as at:
            problem = self._problem(
                sizes,
                k_scale is not None,
                window=window,
                rope_theta=rope_theta,
                qk_scale_factor=qk_scale_factor,
                sm_scale=sm_scale,
            )
            self._fill(torch, given, sizes, device, at)
            if at.capturing:
                plan, workspace = self._captured(torch, problem, device, at)
            else:
                plan, workspace = self._eager(torch, problem, context, device, at)
            buffers = Buffers()
            for name, tensor in given.items():
                if tensor is not None:
                    setattr(buffers, name, tensor.data_ptr())
            plan.run(buffers, _aligned(workspace), plan.workspace_bytes, at.address)
        return given["out"]

    def prepare(self, qkv, *arguments, stream=None, **options):
        """Plan and workspace that a graph captured on the stream (default: the current one) will
        use, for the arguments of an attention_decode(). Runs nothing."""
        torch = _torch()
        names = ("positions", "cache_loc", "seq_lens", "page_table", "k_cache", "v_cache")
        given = dict(zip(names, arguments), qkv=qkv)
        for name in ("cos_sin", "k_scale", "v_scale", "cache_seqlens", "cu_seqlens_q", "out"):
            given[name] = options.get(name)
        rope_theta = options.get("rope_theta", 0.0)
        sizes = _sizes(torch, given, rope_theta)
        self._check_device(qkv.device)
        with _on(torch, qkv.device, stream) as at:
            if at.capturing:
                raise ValueError("prepare() before the capture begins, not within it")
            scales = ("window", "rope_theta", "qk_scale_factor", "sm_scale")
            problem = self._problem(
                sizes,
                given["k_scale"] is not None,
                **{name: options[name] for name in scales if name in options},
            )
            self._constant(torch, "one", qkv.device, at, lambda: _ones(torch, qkv.device))
            self._constant(
                torch,
                ("starts", sizes.batch, sizes.q_len),
                qkv.device,
                at,
                lambda: _starts(torch, sizes, qkv.device),
            )
            self._eager(torch, problem, None, qkv.device, at)

    def _problem(self, sizes, scaled, **more):
        return self.problem(
            batch=sizes.batch,
            q_len=sizes.q_len,
            num_q_heads=sizes.q_heads,
            num_kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            page_size=sizes.page_size,
            max_pages=sizes.max_pages,
            scaled=1 if scaled else 0,
            **more,
        )

    def _check_device(self, device):
        wanted = "cuda" if self.cuda else "cpu"
        if device.type != wanted:
            raise ValueError(
                f"the tensors are on {device}, but {self.path} has the table of a "
                f"{'GPU' if self.cuda else 'CPU'} ({self.version})"
            )

    # What the caller left out. While capturing, a constant that is not there yet is made in the
    # graph.
    def _fill(self, torch, given, sizes, device, at):
        if given["k_scale"] is None:
            one = self._constant(torch, "one", device, at, lambda: _ones(torch, device))
            given["k_scale"] = given["v_scale"] = one
        if given["cache_seqlens"] is None:
            given["cache_seqlens"] = given["seq_lens"] + sizes.q_len
        if given["cu_seqlens_q"] is None:
            given["cu_seqlens_q"] = self._constant(
                torch,
                ("starts", sizes.batch, sizes.q_len),
                device,
                at,
                lambda: _starts(torch, sizes, device),
            )
        if given["out"] is None:
            given["out"] = torch.empty(
                (sizes.tokens, sizes.q_heads * sizes.head_dim), dtype=torch.bfloat16, device=device
            )

    def _constant(self, torch, name, device, at, make):
        # By stream: what one stream has enqueued another one must not read unasked.
        key = (name, device, at.address)
        with self._lock:
            found = self._constants.get(key)
            if found is None:
                found = make()
                if not at.capturing:
                    self._constants[key] = found
            return found

    def _eager(self, torch, problem, context, device, at):
        """The plan and its workspace on this stream. The plan for every context is made with any
        other, so that a capture finds it."""
        key = (_fields(problem), device)
        with self._lock:
            if key not in self._any_plans:
                self._any_plans[key] = self.plan(problem, ANY_CONTEXT, _ordinal(device))
            if context is None:
                plan, kept = self._any_plans[key], self._any_workspaces
                found = kept.get((key, at.address))
                if found is None:
                    found = kept[(key, at.address)] = _workspace(torch, plan, device, at)
                return plan, found
            near = _near(context, problem)
            plan = self._plans.get((key, near))
            if plan is None:
                plan = self.plan(problem, near, _ordinal(device))
                self._plans.put((key, near), plan)
            found = self._workspaces.get((plan, at.address))
            if found is None:
                found = _workspace(torch, plan, device, at)
                self._workspaces.put((plan, at.address), found)
            return plan, found

    def _captured(self, torch, problem, device, at):
        key = (_fields(problem), device)
        with self._lock:
            plan = self._any_plans.get(key)
            prepared = self._any_workspaces.get((key, at.address))
        if plan is None:
            raise RuntimeError(
                "a graph is being captured and this problem has not run yet: call "
                "attention_decode() or prepare() with it before, which loads its kernels"
            )
        # Of the graph's own pool, its clearing captured with it: good for this call alone.
        return plan, prepared if prepared is not None else _workspace(torch, plan, device, at)


_Sizes = collections.namedtuple(
    "_Sizes", "batch q_len tokens q_heads kv_heads head_dim page_size max_pages"
)
_Stream = collections.namedtuple("_Stream", "address capturing")


class _on:
    """The tensors' device and the stream made current; nothing on the CPU."""

    def __init__(self, torch, device, stream):
        self._torch, self._device, self._stream = torch, device, stream
        self._contexts = []

    def __enter__(self):
        torch = self._torch
        if self._device.type != "cuda":
            if self._stream is not None:
                raise ValueError("the tensors are on the CPU, where no stream is")
            return _Stream(None, False)
        self._contexts.append(torch.cuda.device(self._device))
        self._contexts[-1].__enter__()
        if self._stream is not None:
            stream = self._stream
            if isinstance(stream, int):
                stream = torch.cuda.ExternalStream(stream, device=self._device)
            if stream.device != self._device:
                self.__exit__(None, None, None)
                raise ValueError(f"the stream is of {stream.device}, the tensors on {self._device}")
            self._contexts.append(torch.cuda.stream(stream))
            self._contexts[-1].__enter__()
        current = torch.cuda.current_stream(self._device)
        # The default stream's handle is 0; ctypes takes None and 0 for the same null pointer.
        return _Stream(current.cuda_stream, torch.cuda.is_current_stream_capturing())

    def __exit__(self, *error):
        while self._contexts:
            self._contexts.pop().__exit__(*error)


def _fields(problem):
    return tuple(getattr(problem, name) for name, _ in Problem._fields_)


def _ordinal(device):
    return device.index if device.type == "cuda" else CURRENT_DEVICE


def _torch():
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "attention_decode() and prepare() take PyTorch's tensors, and torch cannot be imported: "
            "install it, or use Library.plan() with addresses"
        ) from error
    return torch


def _ones(torch, device):
    return torch.ones(1, dtype=torch.float32, device=device)


def _starts(torch, sizes, device):
    return torch.arange(
        0, sizes.tokens + 1, sizes.q_len, dtype=torch.int32, device=device
    )


def _workspace(torch, plan, device, at):
    # PyTorch's blocks are aligned to 512 bytes on a GPU, to 64 on the CPU.
    memory = torch.empty(
        plan.workspace_bytes + WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=device
    )
    plan.init_workspace(_aligned(memory), plan.workspace_bytes, at.address)
    return memory


def _aligned(memory):
    return -(-memory.data_ptr() // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def _near(context, problem):
    """The context rounded to an eighth of a doubling: few plans, and powers of two stay."""
    if isinstance(context, bool) or not isinstance(context, int):
        raise TypeError(f"context is {context!r}; it counts tokens, or is None for every context")
    capacity = problem.max_pages * problem.page_size
    if not problem.q_len <= context <= capacity:
        raise ValueError(
            f"context is {context}; allowed: {problem.q_len} (L) to {capacity} (the capacity of "
            "the page table)"
        )
    near = round(2.0 ** (round(math.log2(context) * 8) / 8))
    return min(max(near, problem.q_len), capacity)


def _sizes(torch, given, rope_theta):
    """The sizes that the tensors have; raises where they do not fit each other."""
    for name, tensor in given.items():
        optional = name in ("cos_sin", "k_scale", "v_scale", "cache_seqlens", "cu_seqlens_q", "out")
        if name == "positions" and not rope_theta:
            optional = True
        if tensor is None and optional:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is {type(tensor).__name__}; a torch.Tensor is expected")
    _dimensions("page_table", given["page_table"], 2)
    _dimensions("k_cache", given["k_cache"], 4)
    _dimensions("qkv", given["qkv"], 2)
    batch, max_pages = given["page_table"].shape
    pages, page_size, kv_heads, head_dim = given["k_cache"].shape
    tokens, width = given["qkv"].shape
    if batch == 0 or tokens == 0 or tokens % batch != 0:
        raise ValueError(
            f"qkv has {tokens} rows and page_table {batch}: T = B * L with L of 1 or more expected"
        )
    if kv_heads * head_dim == 0:
        raise ValueError(f"k_cache is {tuple(given['k_cache'].shape)}: no size may be 0")
    if width % (2 * head_dim) != 0 or width // (2 * head_dim) <= kv_heads:
        raise ValueError(
            f"qkv has {width} columns; (2*Hq + 2*Hkv) * D expected, with {kv_heads} kv heads of "
            f"{head_dim} by k_cache"
        )
    q_heads = width // (2 * head_dim) - kv_heads
    sizes = _Sizes(
        batch, tokens // batch, tokens, q_heads, kv_heads, head_dim, page_size, max_pages
    )
    fp8 = (torch.float8_e4m3fn, torch.uint8)
    cache = (pages, page_size, kv_heads, head_dim)
    expected = {
        "qkv": ((torch.bfloat16,), (tokens, width)),
        "positions": ((torch.int64,), (tokens,)),
        "cache_loc": ((torch.int64,), (tokens,)),
        "seq_lens": ((torch.int32,), (batch,)),
        "page_table": ((torch.int32,), (batch, max_pages)),
        "k_cache": (fp8, cache),
        "v_cache": (fp8, cache),
        "cos_sin": ((torch.float32,), (None, head_dim)),
        "k_scale": ((torch.float32,), (1,)),
        "v_scale": ((torch.float32,), (1,)),
        "cache_seqlens": ((torch.int32,), (batch,)),
        "cu_seqlens_q": ((torch.int32,), (batch + 1,)),
        "out": ((torch.bfloat16,), (tokens, q_heads * head_dim)),
    }
    for name, (dtypes, shape) in expected.items():
        if given[name] is not None:
            _expect(name, given[name], dtypes, shape, given["qkv"].device)
    if rope_theta and given["cos_sin"] is None:
        raise ValueError("cos_sin is None; with rope_theta it is needed")
    if (given["k_scale"] is None) != (given["v_scale"] is None):
        raise ValueError("k_scale and v_scale: both or neither are given")
    return sizes


def _dimensions(name, tensor, count):
    if tensor.dim() != count:
        raise ValueError(f"{name} has {tensor.dim()} dimensions; {count} expected")


def _expect(name, tensor, dtypes, shape, device):
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name} is {tensor.dtype}; {wanted} expected")
    fits = tensor.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} is {list(tensor.shape)}; [{wanted}] expected")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous; pass {name}.contiguous()")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, but qkv on {device}")


_loaded = {}


def load(path):
    """The Library of this path, loaded once a process."""
    if str(path) not in _loaded:
        _loaded[str(path)] = Library(path)
    return _loaded[str(path)]


def attention_decode(*tensors, library, **options):
    """Library.attention_decode() of `library`, a Library or the path of one."""
    if not isinstance(library, Library):
        library = load(library)
    return library.attention_decode(*tensors, **options)
