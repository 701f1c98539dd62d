"""The law of attention: one fold over blocks of keys, for every engine and every package.

Operations are those of `qcore.reproducible`: float32 numbers of at most 2^-126 in magnitude are zeros, as in kernels
that are compiled with fast math. A namespace has besides:

- `multiply(a, b, c, operands, accumulator)`: `linalg.matmul`.
- `quantized(x, number)`: numbers rounded to a format, to nearest.
- `exp2(x)` of float64 numbers, which may err by a few units in the last place.
- `settled_positive(x)`: `settled` of numbers that are not below zero.
"""

from __future__ import annotations

from math import ceil, inf, log, log2
from math import e as EULER
from typing import Any, NamedTuple

from qcore.engines.cache import DS_MLA, codes, stored
from qcore.engines.engine import Engine
from qcore.engines.fold import EXACT_SUM, EXPONENT, RECIPROCAL, ROUNDED, SCORES, THREADS, WEIGHTS, Attention
from qcore.linalg.accumulator import EXACT
from qcore.reproducible.elementary import PARTS
from qcore.reproducible.operations import normal

ROWS = 128  # queries that are computed together where later keys can be left out
_log = PARTS["log"]


class AttentionCall(NamedTuple):
    """What of a call is known before its numbers are.

    Attributes:
        engine: the engine.
        causal: True if a query sees the keys up to its own place; the last query is at the last key.
        scale: of the scores, a number of float32.
    """

    engine: Engine
    causal: bool
    scale: float


class _Operands(NamedTuple):
    """Queries of (batch, key heads, group * queries, head size), keys and values as the cache has them, which keys a
    row sees, how many of the first keys every row sees, and the factors of the cache that are left for later.
    """

    q: Any
    k: Any
    v: Any
    live: Any
    free: int
    factors: tuple[Any, Any]


def attend(xp: Any, q: Any, k: Any, v: Any, mask: Any, call: AttentionCall) -> Any:
    """Attention of float32 arrays (batch, heads, queries, head size) and (batch, key heads, keys, head size).

    Args:
        xp: the namespace.
        q, k, v: the arrays.
        mask: bools that broadcast to (batch, heads, queries, keys), True where a key counts; or None.
        call: the rest.
    """
    law = call.engine.attention
    queries, keys = q.shape[2], k.shape[2]
    if queries > ROWS and call.causal and mask is None and _ignores_later(law) and not xp.short:
        ends = [*range(queries - (queries - 1) // ROWS * ROWS, queries, ROWS), queries]
        rows = zip([0, *ends], ends, strict=False)
        seen = [(q[:, :, begin:end], keys - queries + end) for begin, end in rows]
        return xp.concatenate([attend(xp, x, k[:, :, :n], v[:, :, :n], None, call) for x, n in seen], 2)
    operands = _entered(xp, q, k, v, mask, call)
    if law.end == WEIGHTS:
        found = _weighted(xp, operands, law, call.scale)
    else:
        tile = law.tile(q.shape[-1], q.shape[-2], q.shape[1] // k.shape[1]) or k.shape[-2]
        found = _folded(xp, operands, law, call.scale, tile)
    return _rounded(xp, found.reshape((*q.shape[:3], v.shape[-1])), law.output)


def _ignores_later(law: Attention) -> bool:
    """True if the keys that a row does not see may be left out of its arrays: their products add zeros to sums."""
    return law.end == WEIGHTS and law.accumulator == EXACT


def gradients(xp: Any, q: Any, k: Any, v: Any, mask: Any, gradient: Any, call: AttentionCall) -> tuple[Any, Any, Any]:
    """The gradients of q, k and v: those of exact attention at the rounded operands, straight through all roundings.

    Products are exact sums, rounded once to float32, and weights those of the exact sum.
    """
    operands = _entered(xp, q, k, v, mask, call)
    query, key = _rounded(xp, operands.q, call.engine.attention.operand), xp.mul(operands.k, operands.factors[0])
    value = xp.mul(operands.v, operands.factors[1])
    weights = _weights(xp, _masked(xp, xp.mul(_exact(xp, query, _turned(key)), call.scale), operands), EXACT_SUM)
    of_output = xp.settled(gradient).reshape((*query.shape[:3], v.shape[-1]))
    of_weights = _exact(xp, of_output, _turned(value))
    along = xp.float32(xp.sums(weights, of_weights, (3,)))
    of_scores = xp.mul(weights, xp.sub(of_weights, along))
    of_q = xp.mul(_exact(xp, of_scores, key), call.scale).reshape(q.shape)
    of_k = xp.mul(_exact(xp, _turned(of_scores), query), call.scale)
    of_v = xp.settled(_exact(xp, _turned(weights), of_output))
    if mask is not None:
        back = -_first_keys(xp, _spread(xp, mask, q, k))
        of_k, of_v = _rolled(xp, of_k, back), _rolled(xp, of_v, back)
    return of_q, of_k, of_v


# Operands.


def _entered(xp: Any, q: Any, k: Any, v: Any, mask: Any, call: AttentionCall) -> _Operands:
    """The operands of both products, before they are rounded to their format."""
    batch, heads, queries, size = q.shape
    key_heads, keys = k.shape[1], k.shape[2]
    rows = heads // key_heads * queries
    seen = None
    if call.causal:
        places = xp.arange(queries, q)[:, None] + (keys - queries)
        seen = (xp.arange(keys, q) <= places)[None, None]
    if mask is not None:
        mask = _spread(xp, mask, q, k)
        seen = mask if seen is None else mask & seen
        # Left padding: a program that packs its texts reads no key before the first one that counts, so blocks begin
        # there. Where no query looks, a weight of 0 must not meet an infinity.
        start = _first_keys(xp, mask)
        k, v, seen = _rolled(xp, k, start), _rolled(xp, v, start), _rolled_last(xp, seen, start)
        v = xp.where(seen.any((1, 2))[:, None, :, None], v, 0.0)
    free = keys if seen is None else keys - queries + 1 if mask is None else 0
    if seen is not None:
        seen = xp.broadcast_to(seen, (*seen.shape[:1], heads if mask is not None else key_heads, queries, keys))
        if mask is None:  # the same for all heads
            seen = xp.broadcast_to(seen[:, :, None], (1, key_heads, heads // key_heads, queries, keys))
        seen = seen.reshape((seen.shape[0], key_heads, rows, keys))
    k, v, factors = _cached(xp, k, v, call.engine)
    return _Operands(q.reshape((batch, key_heads, rows, size)), k, v, seen, free, factors)


def _cached(xp: Any, k: Any, v: Any, engine: Engine) -> tuple[Any, Any, tuple[Any, Any]]:
    """Keys and values of the cache, and factors for later: numbers for the exponent, arrays for scores and P."""
    cache = engine.cache
    if cache is None:
        return k, v, (1.0, 1.0)
    if engine.attention.scale == EXPONENT:
        return codes(xp, cache, k, "k")[0], codes(xp, cache, v, "v")[0], (cache.k, cache.v)
    if _scales_products(engine):
        (k, of_k), (v, of_v) = codes(xp, cache, k, "k"), codes(xp, cache, v, "v")
        return k, v, (of_k, of_v)
    return stored(xp, cache, k, "k"), stored(xp, cache, v, "v"), (1.0, 1.0)


def _scales_products(engine: Engine) -> bool:
    """True if a cache's scales multiply scores, and P: to multiply keys would round these in the operands' format."""
    law, cache = engine.attention, engine.cache
    by_token = cache is not None and cache.scale in ("token", "token_head") and cache.law != DS_MLA
    return by_token and law.scale == SCORES and law.end != WEIGHTS and law.operand is not None


def _spread(xp: Any, mask: Any, q: Any, k: Any) -> Any:
    return xp.broadcast_to(mask, (*q.shape[:3], k.shape[2]))


def _first_keys(xp: Any, mask: Any) -> Any:
    """The first key that counts of each element of the batch, of shape (batch, 1)."""
    places = xp.arange(mask.shape[-1], mask)[None]
    return -xp.greatest(-xp.where(mask.any((1, 2)), places, mask.shape[-1]), (1,))


def _circle(xp: Any, start: Any, length: int) -> tuple[Any, Any]:
    """The indices that take an axis from a place on, for each element of the batch."""
    return xp.arange(start.shape[0], start)[:, None], (xp.arange(length, start)[None] + start) % length


def _rolled(xp: Any, x: Any, start: Any) -> Any:
    """x of (batch, heads, length, size), whose length begins at start."""
    batch, places = _circle(xp, start, x.shape[2])
    return x[batch, :, places].swapaxes(1, 2)


def _rolled_last(xp: Any, x: Any, start: Any) -> Any:
    """x of (batch, heads, rows, length), the same."""
    batch, places = _circle(xp, start, x.shape[3])
    return x[batch, :, :, places].swapaxes(1, 2).swapaxes(2, 3)


# Scores and weights.


def _turned(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _rounded(xp: Any, x: Any, number: Any) -> Any:
    return x if number is None else xp.quantized(x, number)


def _exact(xp: Any, a: Any, b: Any) -> Any:
    """The exact product, rounded once."""
    return xp.settled(xp.multiply(a, b, None, None, EXACT))


def _scores(xp: Any, q: Any, k: Any, law: Attention, scale: Any) -> Any:
    """The scores of a block, scaled unless the exponent is."""
    found = xp.multiply(q, _turned(k), None, (law.operand, law.operand), law.accumulator)
    if law.scale == SCORES and isinstance(scale, float) and abs(scale) <= 1:
        return xp.mul(found, scale)  # which settles what is to be settled before as well
    found = xp.settled(found)
    if law.scale == EXPONENT:
        return found
    if law.scale == ROUNDED:
        return xp.settled(xp.quantized(xp.mul(xp.settled(xp.quantized(found, law.operand)), scale), law.operand))
    return xp.mul(found, scale)


def _masked(xp: Any, scores: Any, operands: _Operands, begin: int = 0) -> Any:
    """The scores of a block of keys from `begin` on, -inf where a row does not see a key."""
    end = begin + scores.shape[-1]
    return scores if end <= operands.free else xp.where(operands.live[..., begin:end], scores, -inf)


def _exp(xp: Any, x: Any) -> Any:
    """Exponentials of differences, which need not be settled: that of a subnormal number is 1."""
    return xp.settled_positive(xp.to_float32(xp.exp(xp.to_float64(x))))


def _exp2(xp: Any, x: Any) -> Any:
    return xp.settled_positive(xp.to_float32(xp.exp2(xp.to_float64(x))))


def _finite(xp: Any, m: Any) -> Any:
    """A maximum that can be subtracted: 0 for that of a row without keys."""
    return xp.where(m == -inf, 0.0, m)


def _or_one(xp: Any, total: Any) -> Any:
    return xp.where(total == 0, 1.0, total)


def _weights(xp: Any, scores: Any, row_sum: str) -> Any:
    """Softmax along the last axis; a row without keys has zeros."""
    if row_sum == EXACT_SUM:
        return xp.softmax(scores, 3, zeros=True)
    p = _exp(xp, scores - _finite(xp, xp.greatest(scores, (3,))))
    total = _or_one(xp, _summed(xp, p, None, row_sum))
    return xp.settled_positive(xp.to_float32(xp.to_float64(p) / xp.to_float64(total)))


def _weighted(xp: Any, operands: _Operands, law: Attention, scale: float) -> Any:
    scores = _masked(xp, _scores(xp, operands.q, operands.k, law, scale), operands)
    weights = _weights(xp, scores, law.row_sum)
    return xp.settled(xp.multiply(weights, operands.v, None, (law.p, law.operand), law.accumulator))


# Sums of rows.


def _summed(xp: Any, p: Any, partial: Any, row_sum: str) -> Any:
    """The partial sums of rows after a block, on the last axis. Sums of settled numbers above 0 are settled."""
    if row_sum == THREADS:
        pairs = xp.pad(p, ((0, 0),) * 3 + ((0, -p.shape[-1] % 8),)).reshape((*p.shape[:3], -1, 4, 2))
        for eight in range(pairs.shape[3]):
            partial = (partial + pairs[:, :, :, eight, :, 0]) + pairs[:, :, :, eight, :, 1]
        return partial
    if row_sum == EXACT_SUM:
        found = xp.exact_total(p, 3)
    else:
        found = p
        while found.shape[-1] > 1:
            found = xp.pad(found, ((0, 0),) * 3 + ((0, found.shape[-1] % 2),))
            found = found[..., ::2] + found[..., 1::2]
    return found if partial is None else partial + found


def _total(partial: Any, row_sum: str) -> Any:
    """The sum of the partial sums: threads add their neighbours but one, then their neighbours."""
    if row_sum != THREADS:
        return partial
    even, odd = partial[..., 0:1] + partial[..., 2:3], partial[..., 1:2] + partial[..., 3:4]
    return even + odd


# The fold.


def _folded(xp: Any, operands: _Operands, law: Attention, scale: float, tile: int) -> Any:
    """The result of all parts of the keys."""
    keys = operands.k.shape[2]
    blocks = ceil(keys / tile)
    length = law.split_size or ceil(blocks / (law.splits or 1)) * tile
    parts = [
        _part(xp, operands, law, scale, range(begin, min(begin + length, keys), tile), min(begin + length, keys))
        for begin in range(0, keys, length)
    ]
    ended = [_ended(xp, found, total, law, operands.factors[1]) for found, total, _ in parts]
    return ended[0] if len(parts) == 1 else _merged(xp, parts, ended, law, _exponent(scale, operands.factors[0]))


def _exponent(scale: float, factor: Any) -> float:
    """The factor of scores whose exponential is that of 2; factors that are arrays are in the scores."""
    return normal(normal(scale * normal(log2(EULER))) * (factor if isinstance(factor, float) else 1.0))


def _part(xp: Any, operands: _Operands, law: Attention, scale: float, blocks: range, end: int) -> tuple[Any, Any, Any]:
    """O, l and m of the blocks of one part of the keys, which ends at `end`."""
    q, k, v, (of_k, of_v) = operands.q, operands.k, operands.v, operands.factors
    rows = q.shape[:3]
    like = xp.settled(q)
    found = xp.zeros((*rows, v.shape[-1]), like)
    partial = xp.zeros((*rows, 4 if law.row_sum == THREADS else 1), like)
    m = xp.zeros((*rows, 1), like) - inf
    for begin in reversed(blocks) if law.descending else blocks:
        stop = min(begin + blocks.step, end)
        factor = scale if isinstance(of_k, float) else xp.mul(_turned(of_k[:, :, begin:stop]), scale)
        scores = _masked(xp, _scores(xp, q, k[:, :, begin:stop], law, factor), operands, begin)
        before, m = m, xp.maximum(m, xp.greatest(scores, (3,)))
        p, a = _exponentials(xp, scores, before, m, law, _exponent(scale, of_k))
        partial = _summed(xp, p, xp.mul(partial, a), law.row_sum)
        product = (law.p, law.operand), law.accumulator
        found = xp.mul(found, a)
        p = p if isinstance(of_v, float) else xp.mul(p, _turned(of_v[:, :, begin:stop]))
        if law.levels == 2:
            found = xp.add(found, xp.multiply(p, v[:, :, begin:stop], None, *product))
        else:
            found = xp.settled(xp.multiply(p, v[:, :, begin:stop], found, *product))
    return found, _total(partial, law.row_sum), m


def _exponentials(xp: Any, scores: Any, before: Any, m: Any, law: Attention, c: float) -> tuple[Any, Any]:
    """P of a block, and the factor of what was summed before it."""
    safe = _finite(xp, m)
    if law.scale != EXPONENT:
        shift, shifted = normal(law.offset * log(2)), scores - safe
        return _exp(xp, xp.add(xp.settled(shifted), shift) if shift else shifted), _exp(xp, before - safe)
    a = _exp2(xp, xp.mul(xp.sub(before, safe), c))
    shift = xp.mul(safe, c)
    shift = xp.where(m == -inf, 0.0, xp.sub(shift, float(law.offset)) if law.offset else shift)
    # One fused multiply-add: the product is exact in float64.
    return _exp2(xp, xp.to_float32(xp.float64(scores) * c - xp.float64(shift))), a


def _ended(xp: Any, found: Any, total: Any, law: Attention, factor: Any) -> Any:
    """O / l times the factor of the cache; 0 for a row without keys."""
    divisor = _or_one(xp, total)
    factor = factor if isinstance(factor, float) else 1.0  # arrays are in P
    if law.end == RECIPROCAL:
        return xp.mul(found, xp.mul(xp.div(1.0, divisor), factor))
    return xp.mul(xp.div(found, divisor), factor)


def _merged(xp: Any, parts: list[Any], ended: list[Any], law: Attention, c: float) -> Any:
    """The sum of the parts' results, by weights of their log-sum-exp, ascending; each sum is fused with its product."""
    natural = normal(c * normal(log(2))) if law.scale == EXPONENT else 1.0
    sums = []
    for _, total, m in parts:
        lse = xp.add(xp.mul(_finite(xp, m), natural), _log(xp, xp.mul(_or_one(xp, total), 2.0**-law.offset)))
        sums.append(xp.where(total == 0, -inf, lse))
    most = sums[0]
    for lse in sums[1:]:
        most = xp.maximum(most, lse)
    weights = [_exp(xp, lse - _finite(xp, most)) for lse in sums]
    total = weights[0]
    for weight in weights[1:]:
        total = xp.add(total, weight)
    found = xp.zeros(ended[0].shape, ended[0])
    for weight, one in zip(weights, ended, strict=True):
        weight = xp.div(weight, _or_one(xp, total))
        fused = xp.float32(xp.float64(weight) * xp.float64(one) + xp.float64(found))
        found = xp.where(weight == 0, found, fused)
    return found
