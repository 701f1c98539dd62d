"""Attention of engines on NumPy arrays: the reference that the other packages must equal bit for bit."""

from __future__ import annotations

from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from qcore import arrays
from qcore.arguments import check_flag, check_float, check_size, check_type
from qcore.engines.engine import Engine, EngineLike, check_engine
from qcore.engines.fold import EXACT_SUM, WEIGHTS, Attention
from qcore.engines.law import AttentionCall, attend
from qcore.linalg.arrays import matmul
from qcore.reproducible.operations import Names, normal

_MOST_EXACT = 1 << 20  # numbers of an exact sum


class Attending(Names):
    """The array namespace of attention."""

    exp2 = staticmethod(np.exp2)
    settled_positive = Names.settled

    @staticmethod
    def multiply(a: Any, b: Any, c: Any, operands: Any, accumulator: Any) -> np.ndarray:
        return matmul(a, b, c, operands=operands, accumulator=accumulator)

    @staticmethod
    def quantized(x: Any, number: Any) -> np.ndarray:
        return arrays.quantize(x, number)


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    engine: EngineLike,
    causal: bool = True,
    *,
    scale: float | None = None,
    mask: np.ndarray | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """Attention as an engine computes it: softmax(scale q k^T) v, of keys and values that passed its cache.

    Queries end where keys end: one query is a step of decoding, as many as keys are one pass over a text, and numbers
    between are a chunk. `qcore.engines.Attention` has the law. Values must be finite where a query sees their key, or
    a later key of the same block.

    Args:
        q: float32 array of shape (batch, heads, queries, head size).
        k: float32 array of shape (batch, key heads, keys, head size); each of the key heads serves heads / key heads
            neighbours. What a cache has is what was not rounded yet: the engine's cache rounds it.
        v: float32 array of k's shape.
        engine: a name of `ENGINES`, such as "fa3.hopper.fp8", an `Engine`, or its text.
        causal: True lets query i of L see the first keys - L + 1 + i keys.
        scale: of the scores, rounded to float32; None is 1 / sqrt(head size).
        mask: bools that broadcast to (batch, heads, queries, keys), True where a key counts: for padding, and caches
            that are longer than their text. Blocks of keys begin at the first key of each element of the batch that a
            query sees, as if left padding were not there.
        window: the number of keys that a query sees, the last of them its own; None is all. With causal=True, and in
            engines with tiles without a mask. All keys are given, since tiles depend on their places.
        softcap: a bound c of scores, which become c tanh(scores / c); None is none.
        sinks: float32 array of shape (heads,): for each head one more score, which has no value; None is none.

    Returns:
        A float32 array of q's shape, whose numbers are in the engine's output format. Queries without keys have zeros.

    Raises:
        TypeError: if an array has another dtype.
        ValueError: if shapes do not fit, or the engine does not know tiles for this head size, windows, soft caps or
            sinks.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> q, k, v = rng.standard_normal((3, 1, 1, 112, 128)).astype(np.float32)
        >>> whole = attention(q, k, v, "fa3.hopper.fp8")
        >>> steps = [attention(*(x[:, :, :n] for x in (q, k, v)), "fa3.hopper.fp8") for n in (96, 97)]
        >>> step = [
        ...     attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], "fa3.hopper.fp8") for n in (96, 97)
        ... ]
        >>> [bool((step[i][0, 0, 0] == whole[0, 0, n - 1]).all()) for i, n in enumerate((96, 97))]
        [True, False]
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_type(name, x, np.ndarray, "a NumPy array of float32")
    check_type("mask", mask, np.ndarray | None, "a NumPy array of bools, or None")
    check_type("sinks", sinks, np.ndarray | None, "a NumPy array of float32, or None")
    call = check_call(q, k, v, mask, sinks, engine, causal, scale, window, softcap)
    with Attending.arithmetic():
        return Attending.one_nan(attend(Attending, q, k, v, mask, sinks, call))


def check_call(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    sinks: Any,
    engine: Any,
    causal: bool,
    scale: float | None,
    window: int | None,
    softcap: float | None,
) -> AttentionCall:
    """The call of arrays of any package, whose shapes and dtypes fit."""
    found = check_engine(engine)
    check_flag("causal", causal)
    for name, x in (("q", q), ("k", k), ("v", v), ("sinks", sinks)):
        if x is None:
            continue
        dtype = str(x.dtype).removeprefix("torch.")
        if dtype != "float32":
            raise TypeError(f"{name} has dtype {dtype}; allowed is float32")
    shape, keys, values = tuple(q.shape), tuple(k.shape), tuple(v.shape)
    _check_shapes(shape, keys, values, found, causal)
    if mask is not None:
        _check_mask(mask, shape, keys, found)
    if window is not None:
        check_size("window", window)
        _check_window(window, mask, shape, keys, causal, found.attention)
    if softcap is not None:
        softcap = normal(check_float("softcap", softcap, "a number above 0", lambda x: 0 < x < inf))
        _check_defined("softcap", softcap, found.attention.softcap, found.attention)
    if sinks is not None:
        _check_defined("sinks", "an array", found.attention.sink, found.attention)
        if tuple(sinks.shape) != (shape[1],):
            raise ValueError(f"sinks has shape {tuple(sinks.shape)}; allowed is {(shape[1],)}, one for each head")
    given = 1 / sqrt(shape[3]) if scale is None else check_float("scale", scale, "a finite number", isfinite)
    return AttentionCall(found, causal, normal(given), window, softcap)


def _check_defined(name: str, given: Any, word: Any, law: Attention) -> None:
    """Raises unless a law says what becomes of an argument; one block of keys leaves nothing open."""
    if not word and law.end != WEIGHTS:
        raise ValueError(f"{name}={given}: the engine does not define it for tiles; allowed is None")


def _check_window(window: int, mask: Any, q: Any, k: Any, causal: bool, law: Attention) -> None:
    if not causal:
        raise ValueError(f"window={window} with causal=False; allowed is causal=True: a window ends at the query's key")
    _check_defined("window", window, law.window_tiles, law)
    if law.end == WEIGHTS:
        return
    law.window_tile(q[3], q[1] // k[1])
    if mask is not None:
        raise ValueError(
            f"window={window} with a mask, and the engine has tiles; allowed is mask=None: tiles of a window depend on "
            "the first query of each text"
        )
    if law.splits or law.split_size:
        raise ValueError(f"window={window} with an engine that cuts keys in parts; allowed are engines without")


def _check_shapes(q: Any, k: Any, v: Any, engine: Engine, causal: bool) -> None:
    fits = all(len(shape) == 4 and min(shape) > 0 for shape in (q, k, v))
    fits = fits and q[0] == k[0] == v[0] and k[1:3] == v[1:3] and q[3] == k[3] and q[1] % k[1] == 0
    if not fits:
        allowed = "(batch, heads, queries, size), (batch, key heads, keys, size) and the same, heads a multiple"
        raise ValueError(f"q has shape {q}, k {k}, v {v}; allowed are {allowed}")
    if causal and q[2] > k[2]:
        raise ValueError(f"q has {q[2]} queries, k {k[2]} keys, with causal=True; allowed are as many queries at most")
    if engine.cache is not None:
        engine.cache.check_size("k", k[3])
        engine.cache.check_size("v", v[3])
    law = engine.attention
    law.tile(q[3], q[2], q[1] // k[1])
    if law.end != WEIGHTS and v[3] != q[3]:
        raise ValueError(f"v has size {v[3]}, q {q[3]}; allowed are equal ones: the engine's tiles are for these")
    if law.row_sum == EXACT_SUM and k[2] << law.offset > _MOST_EXACT:
        raise ValueError(f"k has {k[2]} keys; allowed are {_MOST_EXACT >> law.offset}, of which row_sum=exact is exact")


def _check_mask(mask: Any, q: Any, k: Any, engine: Engine) -> None:
    dtype, shape = str(mask.dtype).removeprefix("torch."), tuple(mask.shape)
    if dtype != "bool":
        raise TypeError(f"mask has dtype {dtype}; allowed is bool")
    scores = (*q[:3], k[2])
    pairs = zip(reversed(shape), reversed(scores), strict=False)
    if len(shape) > 4 or any(size not in (1, most) for size, most in pairs):
        raise ValueError(f"mask has shape {shape}; allowed is what broadcasts to {scores}")
    if engine.attention.splits is not None:
        raise ValueError(
            f"mask is given, and the engine cuts keys in splits={engine.attention.splits}, whose places depend on the "
            "number of keys; allowed is mask=None, or split_size"
        )
