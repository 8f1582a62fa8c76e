"""Kernels of a step that are not matrix products: norm, rope and KV write, attention, embedding, sampling.

Activations are f32 [tokens][cols], one row after another; `position` is i32 [1], the position of the first
token of the call, read on the device. `state` is i32 [3]: position, token, tokens produced (`STATE_*`), so
that `position` is the state's own address and a decode step's `tokens` is that address + 4.

KV cache of one layer: K and V, f16 [kv_heads][capacity][head_dim] each. Rope table: f32
[capacity][head_dim/2][2], cosine and sine of each position and frequency (`rope.rope_table`).
"""

from __future__ import annotations

from attrib.manifest import Dim3
from engine.kernels import (
    Coverage,
    KernelSpec,
    Kind,
    Shape,
    Traffic,
    ceil_div,
    one_each,
    require,
    strided,
)
from engine.repack import gpu_row_bytes

STATE_POSITION, STATE_TOKEN, STATE_PRODUCED, STATE_INTS = 0, 1, 2, 3
NORM_THREADS = 1024
HEAD_NORM_THREADS = 32
FLAT_THREADS = 256
EMBED_THREADS = 128
ATTN_THREADS = 128
ATTN_TILE = 32
PREFILL_PAIRS = 64
ARGMAX_PARTS = 128
MAX_GROUP = 8
MAX_SPLITS = 256
HEAD_DIMS = (64, 128)


def _flat(name: str, params: tuple[str, ...], moved: int, per_thread: int = 4) -> KernelSpec:
    """An elementwise kernel over n = tokens × cols values, four a thread, moving `moved` bytes a value."""
    kinds: tuple[tuple[str, Kind], ...] = tuple((p, "ptr") for p in params)

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        size = ceil_div(shape.tokens * shape.cols, per_thread)
        return Coverage((("element", one_each(size, grid[0] * block[0])),))

    return KernelSpec(
        name=name,
        source=f"{name.removesuffix('_f16')}.cu",
        params=(*kinds, ("n", "i32")),
        block=lambda shape: (FLAT_THREADS, 1, 1),
        grid=lambda shape: (ceil_div(shape.tokens * shape.cols, per_thread * FLAT_THREADS), 1, 1),
        coverage=coverage,
        traffic=lambda shape: Traffic(act_bytes=moved * shape.tokens * shape.cols),
        check=lambda shape: require(shape.tokens * shape.cols % 4 == 0, name, "a multiple of four values"),
    )


def swiglu(*, half: bool = False) -> KernelSpec:
    """out[i] = gate[i] / (1 + e^-gate[i]) · up[i], n = tokens × cols; out may be gate or up, or with `half` is f16."""
    return _flat("swiglu_f16" if half else "swiglu", ("gate", "up", "out"), 10 if half else 12)


def add_residual() -> KernelSpec:
    """x[i] += y[i], n = tokens × cols."""
    return _flat("add_residual", ("x", "y"), 12)


def add_bias() -> KernelSpec:
    """x f32 [tokens][cols] += bias f32 [cols]."""

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        columns = one_each(shape.cols, grid[0] * block[0])
        return Coverage((("token", one_each(shape.tokens, grid[1])), ("column", columns)))

    return KernelSpec(
        name="add_bias",
        source="add_bias.cu",
        params=(("x", "ptr"), ("bias", "ptr"), ("cols", "i32")),
        block=lambda shape: (FLAT_THREADS, 1, 1),
        grid=lambda shape: (ceil_div(shape.cols, FLAT_THREADS), shape.tokens, 1),
        coverage=coverage,
        traffic=lambda shape: Traffic(act_bytes=8 * shape.tokens * shape.cols + 4 * shape.cols),
        check=lambda shape: None,
    )


def rms_norm(threads: int = NORM_THREADS, *, half: bool = False) -> KernelSpec:
    """out[t][c] = x[t][c] / sqrt(mean(x[t]²) + eps) · weight[c], one block a token.

    out may be x, or with `half` is f16. threads: whole warps, at most 1024; `HEAD_NORM_THREADS` for rows as short
    as a head.
    """

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        tokens, columns = one_each(shape.tokens, grid[0]), strided(shape.cols, block[0])
        return Coverage((("token", tokens), ("column", columns)))

    def check(shape: Shape) -> None:
        require(shape.cols % 4 == 0, "rms_norm", f"a multiple of four values a row, not {shape.cols}")

    return KernelSpec(
        name="rms_norm_f16" if half else "rms_norm",
        source="rms_norm.cu",
        params=(("x", "ptr"), ("weight", "ptr"), ("out", "ptr"), ("cols", "i32"), ("eps", "f32")),
        block=lambda shape: (threads, 1, 1),
        grid=lambda shape: (shape.tokens, 1, 1),
        coverage=coverage,
        traffic=lambda shape: Traffic(act_bytes=(6 if half else 8) * shape.tokens * shape.cols + 4 * shape.cols),
        check=check,
    )


def rope_kv_write() -> KernelSpec:
    """Add biases, rotate q in place; write rotated k, and v, to the cache as f16. A block takes a head of some tokens.

    q f32 [tokens][heads × head_dim], k and v f32 [tokens][kv_heads × head_dim] (unchanged), biases f32 of one row
    or None. interleaved 0: pairs (i, i + head_dim/2) (neox, qwen2); 1: pairs (2i, 2i + 1) (llama in GGUF).
    """

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        heads = one_each(shape.heads + 2 * shape.kv_heads, grid[0])
        pairs = one_each(shape.tokens * (shape.head_dim // 2), grid[1] * block[0])
        return Coverage((("head", heads), ("token-pair", pairs)))

    def traffic(shape: Shape) -> Traffic:
        kv = 2 * shape.kv_heads * shape.head_dim
        acts = 8 * shape.heads * shape.head_dim + 4 * kv + 4 * shape.head_dim
        return Traffic(kv_bytes=2 * kv * shape.tokens, act_bytes=acts * shape.tokens)

    def together(shape: Shape) -> int:
        return min(shape.tokens, max(1, FLAT_THREADS // (shape.head_dim // 2)))

    return KernelSpec(
        name="rope_kv_write",
        source="rope_kv_write.cu",
        params=(
            *((name, "ptr") for name in ("q", "k", "v", "q_bias", "k_bias", "v_bias")),
            ("table", "ptr"),
            ("position", "ptr"),
            ("k_cache", "ptr"),
            ("v_cache", "ptr"),
            ("tokens", "i32"),
            ("heads", "i32"),
            ("kv_heads", "i32"),
            ("head_dim", "i32"),
            ("capacity", "i32"),
            ("interleaved", "i32"),
        ),
        block=lambda shape: (together(shape) * (shape.head_dim // 2), 1, 1),
        grid=lambda shape: (shape.heads + 2 * shape.kv_heads, ceil_div(shape.tokens, together(shape)), 1),
        coverage=coverage,
        traffic=traffic,
        check=lambda shape: require(
            shape.head_dim % 2 == 0 and shape.head_dim <= 2048, "rope_kv_write", "an even head_dim up to 2048"
        ),
    )


def query_group(heads: int, kv_heads: int) -> int:
    """Query heads a decode-attention block serves: the largest divisor of the ratio up to `MAX_GROUP`."""
    ratio = heads // kv_heads
    return next(g for g in range(min(ratio, MAX_GROUP), 0, -1) if ratio % g == 0)


def _check_attention(name: str, shape: Shape) -> None:
    require(shape.head_dim in HEAD_DIMS, name, f"a head_dim of 64 or 128, not {shape.head_dim}")
    require(shape.heads % shape.kv_heads == 0, name, "heads to be a multiple of kv_heads")
    require(1 <= shape.splits <= MAX_SPLITS, name, f"1 to {MAX_SPLITS} splits, not {shape.splits}")


def live_splits(kv_len: int, splits: int) -> tuple[int, int]:
    """(positions a split takes, splits that have any): tiles of `ATTN_TILE` positions dealt out evenly."""
    chunk = ceil_div(ceil_div(kv_len, ATTN_TILE), splits) * ATTN_TILE
    return chunk, ceil_div(kv_len, chunk)


def attn_split(heads: int, kv_heads: int, head_dim: int) -> KernelSpec:
    """Partial attention of one token (KV length = position + 1) over one piece of the KV range.

    q f32 [heads][head_dim]; part_acc f32 [heads][splits][head_dim], Σ 2^(s − m) · v; part_ml f32
    [heads][splits][2], m = max s and l = Σ 2^(s − m), with s = scale · log2 e · q·k. Grid (heads/GROUP,
    splits), fixed: the kernel derives each split's range from the position (`live_splits`); splits without
    any write nothing. GROUP query heads of one KV head share every K and V load.
    """
    group = query_group(heads, kv_heads)

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        chunk, _ = live_splits(shape.kv_len, shape.splits)
        reached = one_each(shape.kv_len, grid[1] * chunk)
        return Coverage((("head", one_each(shape.heads, grid[0] * group)), ("position", reached)))

    def traffic(shape: Shape) -> Traffic:
        _, live = live_splits(shape.kv_len, shape.splits)
        acts = 4 * shape.heads * (shape.head_dim + live * (shape.head_dim + 2))
        return Traffic(kv_bytes=4 * shape.kv_heads * shape.kv_len * shape.head_dim, act_bytes=acts)

    return KernelSpec(
        name="attn_split",
        source="attn_split.cu",
        params=(
            ("q", "ptr"),
            ("k_cache", "ptr"),
            ("v_cache", "ptr"),
            ("position", "ptr"),
            ("part_acc", "ptr"),
            ("part_ml", "ptr"),
            ("heads", "i32"),
            ("kv_heads", "i32"),
            ("capacity", "i32"),
            ("splits", "i32"),
            ("scale", "f32"),
        ),
        block=lambda shape: (ATTN_THREADS, 1, 1),
        grid=lambda shape: (shape.heads // group, shape.splits, 1),
        coverage=coverage,
        traffic=traffic,
        check=lambda shape: _check_attention("attn_split", shape),
        defines=(("GROUP", group), ("HEAD_DIM", head_dim)),
    )


def attn_combine() -> KernelSpec:
    """out f32 [heads][head_dim] from the partial results of `attn_split`; one block a head."""

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        dims = one_each(shape.head_dim, block[0])
        return Coverage((("head", one_each(shape.heads, grid[0])), ("dim", dims)))

    def traffic(shape: Shape) -> Traffic:
        _, live = live_splits(shape.kv_len, shape.splits)
        return Traffic(act_bytes=4 * shape.heads * (shape.head_dim + live * (shape.head_dim + 2)))

    return KernelSpec(
        name="attn_combine",
        source="attn_combine.cu",
        params=(
            ("part_acc", "ptr"),
            ("part_ml", "ptr"),
            ("position", "ptr"),
            ("out", "ptr"),
            ("head_dim", "i32"),
            ("splits", "i32"),
        ),
        block=lambda shape: (shape.head_dim, 1, 1),
        grid=lambda shape: (shape.heads, 1, 1),
        coverage=coverage,
        traffic=traffic,
        check=lambda shape: _check_attention("attn_combine", shape),
    )


def attn_prefill(head_dim: int) -> KernelSpec:
    """Causal attention of `tokens` new positions over the cache, which already holds them.

    q f32 [tokens][heads × head_dim], out the same as f16. A block takes 64 (token, head) pairs of one KV head,
    numbered token × heads/kv_heads + head, so that all query heads of the group share a K/V tile in shared
    memory. Queries and weights meet keys and values on tensor cores, rounded to f16; sums are f32.
    """

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        pairs = one_each(shape.tokens * (shape.heads // shape.kv_heads), grid[0] * PREFILL_PAIRS)
        return Coverage((("kv_head", one_each(shape.kv_heads, grid[1])), ("token-head", pairs)))

    def traffic(shape: Shape) -> Traffic:
        kv = 4 * shape.kv_heads * shape.kv_len * shape.head_dim
        return Traffic(kv_bytes=kv, act_bytes=6 * shape.tokens * shape.heads * shape.head_dim)

    def grid(shape: Shape) -> Dim3:
        return (ceil_div(shape.tokens * (shape.heads // shape.kv_heads), PREFILL_PAIRS), shape.kv_heads, 1)

    return KernelSpec(
        name="attn_prefill",
        source="attn_prefill.cu",
        params=(
            ("q", "ptr"),
            ("k_cache", "ptr"),
            ("v_cache", "ptr"),
            ("position", "ptr"),
            ("out", "ptr"),
            ("tokens", "i32"),
            ("heads", "i32"),
            ("kv_heads", "i32"),
            ("capacity", "i32"),
            ("scale", "f32"),
        ),
        block=lambda shape: (ATTN_THREADS, 1, 1),
        grid=grid,
        coverage=coverage,
        traffic=traffic,
        check=lambda shape: _check_attention("attn_prefill", shape),
        defines=(("HEAD_DIM", head_dim),),
    )


def embed(quant: str) -> KernelSpec:
    """out f32 [tokens][cols] = rows tokens[t] of an embedding in the GPU layout; tokens i32 [tokens]."""
    name = f"embed_{quant}"

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        octets = one_each(shape.cols // 8, grid[0] * block[0])
        return Coverage((("token", one_each(shape.tokens, grid[1])), ("octet", octets)))

    def traffic(shape: Shape) -> Traffic:
        weights = shape.tokens * gpu_row_bytes(quant, shape.cols)
        return Traffic(weight_bytes=weights, act_bytes=4 * shape.tokens * (shape.cols + 1))

    return KernelSpec(
        name=name,
        source="embed.cu",
        params=(("weights", "ptr"), ("tokens", "ptr"), ("out", "ptr"), ("cols", "i32")),
        block=lambda shape: (EMBED_THREADS, 1, 1),
        grid=lambda shape: (ceil_div(shape.cols, 8 * EMBED_THREADS), shape.tokens, 1),
        coverage=coverage,
        traffic=traffic,
        check=lambda shape: require(shape.cols % 32 == 0, name, "a multiple of 32 values a row"),
    )


def argmax_partial() -> KernelSpec:
    """The largest of logits f32 [n] in each of `parts` pieces: part_value f32, part_index i32 [parts]."""

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        return Coverage((("logit", strided(shape.cols, grid[0] * block[0])),))

    return KernelSpec(
        name="argmax_partial",
        source="argmax.cu",
        params=(("logits", "ptr"), ("part_value", "ptr"), ("part_index", "ptr"), ("n", "i32")),
        block=lambda shape: (FLAT_THREADS, 1, 1),
        grid=lambda shape: (shape.parts, 1, 1),
        coverage=coverage,
        traffic=lambda shape: Traffic(act_bytes=4 * shape.cols + 8 * shape.parts),
        check=lambda shape: require(1 <= shape.parts <= 1024, "argmax_partial", "1 to 1024 parts"),
    )


def advance() -> KernelSpec:
    """Take the arg max over the parts (lowest index of equal values) and move `consumed` positions on.

    state i32 [3]; ring i32 [ring_size], the token goes to ring[produced % ring_size].
    """

    def coverage(shape: Shape, grid: Dim3, block: Dim3) -> Coverage:
        return Coverage((("part", strided(shape.parts, block[0]) * grid[0]),))

    return KernelSpec(
        name="advance",
        source="argmax.cu",
        params=(
            ("part_value", "ptr"),
            ("part_index", "ptr"),
            ("state", "ptr"),
            ("ring", "ptr"),
            ("parts", "i32"),
            ("consumed", "i32"),
            ("ring_size", "i32"),
        ),
        block=lambda shape: (FLAT_THREADS, 1, 1),
        grid=lambda shape: (1, 1, 1),
        coverage=coverage,
        traffic=lambda shape: Traffic(act_bytes=8 * shape.parts + 16),
        check=lambda shape: None,
    )
