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

from qcore.engines.cache import BFLOAT16, DS_MLA, codes, stored
from qcore.engines.engine import Engine
from qcore.engines.fold import (
    AT_TILE,
    EXACT_SUM,
    EXPONENT,
    EXPONENTIALS,
    FIRST,
    LAST,
    RECIPROCAL,
    ROUNDED,
    SCORES,
    THREADS,
    WEIGHTS,
    Attention,
)
from qcore.engines.rotation import rotated, rotated_back
from qcore.linalg.accumulator import EXACT
from qcore.reproducible.elementary import PARTS
from qcore.reproducible.operations import normal

ROWS = 128  # queries that are computed together where later keys can be left out
_log, _tanh = PARTS["log"], PARTS["tanh"]


class AttentionCall(NamedTuple):
    """What of a call is known before its numbers are.

    Attributes:
        engine: the engine.
        causal: True if a query sees the keys up to its own place; the last query is at the last key.
        scale: of the scores, a number of float32.
        window: the number of keys that a query sees, its own among them; None is all.
        softcap: the bound of scores, a number of float32; None is none.
    """

    engine: Engine
    causal: bool
    scale: float
    window: int | None = None
    softcap: float | None = None

    @property
    def law(self) -> Attention:
        return self.engine.attention


class _Operands(NamedTuple):
    """Queries of (batch, key heads, group * queries, head size), keys and values as the cache has them, which keys a
    row sees, how many of the first keys every row sees, the factors of the cache that are left for later, and the sinks
    of the rows.
    """

    q: Any
    k: Any
    v: Any
    live: Any
    free: int
    factors: tuple[Any, Any]
    sinks: Any


def attend(xp: Any, q: Any, k: Any, v: Any, mask: Any, sinks: Any, call: AttentionCall) -> Any:
    """Attention of float32 arrays (batch, heads, queries, head size) and (batch, key heads, keys, head size).

    Args:
        xp: the namespace.
        q, k, v: the arrays.
        mask: bools that broadcast to (batch, heads, queries, keys), True where a key counts; or None.
        sinks: a float32 number for each head; or None.
        call: the rest.
    """
    if not _is_rotated(call):
        return _attended(xp, q, k, v, mask, sinks, call)
    found = _attended(xp, *_all_rotated(xp, q, k, v, call), mask, sinks, _of_rotated(call, q))
    return _rounded(xp, xp.mul(rotated_back(xp, found), 1 / v.shape[-1]), call.law.output)


def _is_rotated(call: AttentionCall) -> bool:
    return call.engine.cache is not None and call.engine.cache.rotated


def _all_rotated(xp: Any, q: Any, k: Any, v: Any, call: AttentionCall) -> tuple[Any, Any, Any]:
    q, k, v = (_rounded(xp, rotated(xp, x), call.law.operand) for x in (q, k, v))
    return q, k, v


def _of_rotated(call: AttentionCall, q: Any) -> AttentionCall:
    """The call with rotated operands, whose scores are larger by the head size."""
    return call._replace(scale=normal(call.scale / q.shape[-1]))


def _attended(xp: Any, q: Any, k: Any, v: Any, mask: Any, sinks: Any, call: AttentionCall) -> Any:
    law = call.law
    queries, keys = q.shape[2], k.shape[2]
    if queries > ROWS and call.causal and mask is None and _ignores_later(call.engine) and not xp.short:
        ends = [*range(queries - (queries - 1) // ROWS * ROWS, queries, ROWS), queries]
        rows = zip([0, *ends], ends, strict=False)
        seen = [(q[:, :, begin:end], keys - queries + end) for begin, end in rows]
        return xp.concatenate([_attended(xp, x, k[:, :, :n], v[:, :, :n], None, sinks, call) for x, n in seen], 2)
    operands = _entered(xp, q, k, v, mask, sinks, call)
    if law.end == WEIGHTS:
        found = _weighted(xp, operands, call)
    elif call.window is not None and call.window < keys:
        found = _windowed(xp, operands, call, queries)
    else:
        tile = law.tile(q.shape[-1], queries, q.shape[1] // k.shape[1]) or keys
        found = _folded(xp, operands, call, tile)
    return _rounded(xp, found.reshape((*q.shape[:3], v.shape[-1])), law.output)


def _ignores_later(engine: Engine) -> bool:
    """True if the keys that a row does not see may be left out of its arrays: their products add zeros to sums."""
    law, cache = engine.attention, engine.cache
    return law.end == WEIGHTS and law.accumulator == EXACT and (cache is None or cache.causal)


def gradients(
    xp: Any, q: Any, k: Any, v: Any, mask: Any, sinks: Any, gradient: Any, call: AttentionCall
) -> tuple[Any, Any, Any, Any]:
    """The gradients of q, k, v and sinks: those of exact attention at the rounded operands, straight through roundings.

    Products are exact sums, rounded once to float32, and weights those of the exact sum.
    """
    if not _is_rotated(call):
        return _gradients(xp, q, k, v, mask, sinks, gradient, call)
    back = xp.mul(rotated(xp, gradient), 1 / v.shape[-1])
    *found, of_sinks = _gradients(xp, *_all_rotated(xp, q, k, v, call), mask, sinks, back, _of_rotated(call, q))
    of_q, of_k, of_v = (rotated_back(xp, x) for x in found)
    return of_q, of_k, of_v, of_sinks


def _gradients(
    xp: Any, q: Any, k: Any, v: Any, mask: Any, sinks: Any, gradient: Any, call: AttentionCall
) -> tuple[Any, Any, Any, Any]:
    operands = _entered(xp, q, k, v, mask, sinks, call)
    query, key = _rounded(xp, operands.q, call.law.operand), xp.mul(operands.k, operands.factors[0])
    value = xp.mul(operands.v, operands.factors[1])
    scores, bent = xp.mul(_exact(xp, query, _turned(key)), call.scale), None
    if call.softcap is not None:
        bent = _tanh(xp, xp.div(scores, call.softcap))
        scores = xp.mul(bent, call.softcap)
    weights, of_sink = _weights(xp, _masked(xp, scores, operands), EXACT_SUM, operands.sinks)
    of_output = xp.settled(gradient).reshape((*query.shape[:3], v.shape[-1]))
    of_weights = _exact(xp, of_output, _turned(value))
    along = xp.float32(xp.sums(weights, of_weights, (3,)))
    of_scores = xp.mul(weights, xp.sub(of_weights, along))
    if bent is not None:
        of_scores = xp.mul(of_scores, xp.sub(1.0, xp.mul(bent, bent)))
    of_q = xp.mul(_exact(xp, of_scores, key), call.scale).reshape(q.shape)
    of_k = xp.mul(_exact(xp, _turned(of_scores), query), call.scale)
    of_v = xp.settled(_exact(xp, _turned(weights), of_output))
    if mask is not None:
        back = -_first_keys(xp, _spread(xp, mask, q, k))
        of_k, of_v = _rolled(xp, of_k, back), _rolled(xp, of_v, back)
    if sinks is None:
        return of_q, of_k, of_v, None
    of_sinks = xp.mul(of_sink, -along).reshape((*q.shape[:3], 1))
    return of_q, of_k, of_v, xp.float32(xp.sums(of_sinks, None, (0, 2))).reshape(sinks.shape)


# Operands.


def _entered(xp: Any, q: Any, k: Any, v: Any, mask: Any, sinks: Any, call: AttentionCall) -> _Operands:
    """The operands of both products, before they are rounded to their format."""
    batch, heads, queries, size = q.shape
    key_heads, keys = k.shape[1], k.shape[2]
    rows = heads // key_heads * queries
    seen = None
    if call.causal:
        seen = _near(xp, q, range(keys - queries, keys), range(keys), call.window)[None, None]
    if mask is not None:
        mask = _spread(xp, mask, q, k)
        seen = mask if seen is None else mask & seen
        # Left padding: a program that packs its texts reads no key before the first one that counts, so blocks begin
        # there. Where no query looks, a weight of 0 must not meet an infinity.
        start = _first_keys(xp, mask)
        k, v, seen = _rolled(xp, k, start), _rolled(xp, v, start), _rolled_last(xp, seen, start)
        v = xp.where(seen.any((1, 2))[:, None, :, None], v, 0.0)
    # Where a window is to be seen the first keys are not.
    free = keys if seen is None else 0 if mask is not None or call.window is not None else keys - queries + 1
    if seen is not None:
        seen = xp.broadcast_to(seen, (*seen.shape[:1], heads if mask is not None else key_heads, queries, keys))
        if mask is None:  # the same for all heads
            seen = xp.broadcast_to(seen[:, :, None], (1, key_heads, heads // key_heads, queries, keys))
        seen = seen.reshape((seen.shape[0], key_heads, rows, keys))
    k, v, factors = _cached(xp, k, v, call.engine)
    if sinks is not None:
        sinks = xp.broadcast_to(xp.settled(sinks)[:, None], (heads, queries)).reshape((1, key_heads, rows, 1))
    return _Operands(q.reshape((batch, key_heads, rows, size)), k, v, seen, free, factors, sinks)


def _near(xp: Any, like: Any, queries: range, keys: range, window: int | None) -> Any:
    """True where a query sees a key: up to its own place, and with a window so many keys."""
    places = xp.arange(len(queries), like)[:, None] + queries.start
    found = xp.arange(len(keys), like) + keys.start <= places
    return found if window is None else found & (places - window < xp.arange(len(keys), like) + keys.start)


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


def _scores(xp: Any, q: Any, k: Any, call: AttentionCall, scale: Any) -> Any:
    """The scores of a block, scaled unless the exponent is, and with the soft cap."""
    law, softcap = call.law, call.softcap
    found = xp.multiply(q, _turned(k), None, (law.operand, law.operand), law.accumulator)
    if law.scale == SCORES and isinstance(scale, float) and abs(scale) <= 1:
        found = xp.mul(found, scale)  # which settles what is to be settled before as well
    elif law.scale == SCORES:
        found = xp.mul(xp.settled(found), scale)
    elif law.scale == ROUNDED:
        found = _in_operand(xp, xp.mul(_in_operand(xp, found, law), scale), law)
    else:
        found = xp.settled(found)
        return found if softcap is None else _tanh(xp, xp.mul(found, scale))
    return found if softcap is None else _capped(xp, found, softcap, law)


def _factor(xp: Any, of_k: Any, call: AttentionCall) -> Any:
    """What scores are multiplied with: of the exponent's scale a number only where a soft cap comes before it."""
    if not isinstance(of_k, float):
        return xp.mul(_turned(of_k), call.scale)
    if call.softcap is not None and call.law.scale == EXPONENT:
        return normal(normal(call.scale / call.softcap) * of_k)
    return call.scale


def _in_operand(xp: Any, x: Any, law: Attention) -> Any:
    """x as a program in 16 bits stores it; anything else keeps float32."""
    return xp.settled(xp.quantized(xp.settled(x), law.operand)) if law.scale == ROUNDED else x


def _capped(xp: Any, scores: Any, softcap: float, law: Attention) -> Any:
    """softcap tanh(scores / softcap), each operation rounded."""
    quotient = _in_operand(xp, xp.div(scores, softcap), law)
    if law.softcap == EXPONENTIALS:
        up, down = _exp(xp, quotient), _exp(xp, -quotient)
        return xp.div(xp.mul(xp.sub(up, down), softcap), xp.add(up, down))
    return _in_operand(xp, xp.mul(_in_operand(xp, _tanh(xp, quotient), law), softcap), law)


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


def _weights(xp: Any, scores: Any, row_sum: str, sinks: Any, law: Attention | None = None) -> tuple[Any, Any]:
    """Softmax along the last axis, and the weight of the sinks; a row without keys has zeros.

    Args:
        xp: the namespace.
        scores: the scores.
        row_sum: the order of the sum, to which a sink is added last.
        sinks: of the rows; or None.
        law: how differences are rounded where there are sinks; None does not.
    """
    if row_sum == EXACT_SUM and sinks is None:
        return xp.softmax(scores, 3, zeros=True), None
    top = xp.greatest(scores, (3,))
    if sinks is None:
        p = _exp(xp, scores - _finite(xp, top))
        return _quotient(xp, p, _or_one(xp, _summed(xp, p, None, row_sum))), None
    sinks = xp.broadcast_to(sinks, top.shape)
    if row_sum == EXACT_SUM:
        found = xp.softmax(xp.concatenate([scores, sinks], 3), 3, zeros=True)
        return found[..., :-1], found[..., -1:]
    sinks = sinks if law is None else _in_operand(xp, sinks, law)
    top = _finite(xp, xp.maximum(top, sinks))
    differences = (x - top if law is None else _in_operand(xp, x - top, law) for x in (scores, sinks))
    p, q = (_exp(xp, xp.where(x == -inf, -inf, d)) for x, d in zip((scores, sinks), differences, strict=True))
    total = _or_one(xp, xp.add(_summed(xp, p, None, row_sum), q))
    return _quotient(xp, p, total), _quotient(xp, q, total)


def _quotient(xp: Any, p: Any, total: Any) -> Any:
    return xp.settled_positive(xp.to_float32(xp.to_float64(p) / xp.to_float64(total)))


def _weighted(xp: Any, operands: _Operands, call: AttentionCall) -> Any:
    law = call.law
    scores = _masked(xp, _scores(xp, operands.q, operands.k, call, call.scale), operands)
    weights, _ = _weights(xp, scores, law.row_sum, operands.sinks, law)
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


def _windowed(xp: Any, operands: _Operands, call: AttentionCall, queries: int) -> Any:
    """The result where rows of queries share the tiles that begin with the window of the first of them."""
    law, (rows, keys), size = call.law, (operands.q.shape[2], operands.k.shape[2]), operands.v.shape[-1]
    group = rows // queries
    tile, step = law.window_tile(operands.q.shape[-1], group)
    apart = operands.q.reshape((*operands.q.shape[:2], group, queries, operands.q.shape[-1]))
    window = call.window or keys
    found = []
    for first in range(0, queries, step):
        last = min(first + step, queries)
        places = range(keys - queries + first, keys - queries + last)
        own = max(places.start - window + 1, 0)  # the first key that the first of these queries sees
        seen = range(own // tile * tile if law.window_start == AT_TILE else own, places.stop)
        part = _part_of(xp, operands, apart[:, :, :, first:last], seen, own)
        live = _near(xp, operands.q, places, seen, window)[None, None, None]
        live = xp.broadcast_to(live, (1, 1, group, *live.shape[3:])).reshape((1, 1, -1, len(seen)))
        sinks = None if operands.sinks is None else _rows_of(operands.sinks, group, first, last)
        folded = _folded(xp, part._replace(live=live, sinks=sinks), call, tile)
        found.append(folded.reshape((*apart.shape[:3], last - first, size)))
    return xp.concatenate(found, 3)


def _part_of(xp: Any, operands: _Operands, q: Any, seen: range, own: int) -> _Operands:
    """The operands of some queries and keys; values before `own` are zeros, which in instructions have no exponent."""
    of_k, of_v = (x if isinstance(x, float) else x[:, :, seen.start : seen.stop] for x in operands.factors)
    k, v = (x[:, :, seen.start : seen.stop] for x in (operands.k, operands.v))
    if own > seen.start:
        v = xp.where((xp.arange(len(seen), v) >= own - seen.start)[:, None], v, 0.0)
    return operands._replace(q=q.reshape((*q.shape[:2], -1, q.shape[-1])), k=k, v=v, free=0, factors=(of_k, of_v))


def _rows_of(sinks: Any, group: int, first: int, last: int) -> Any:
    return sinks.reshape((*sinks.shape[:2], group, -1))[..., first:last].reshape((*sinks.shape[:2], -1, 1))


def _folded(xp: Any, operands: _Operands, call: AttentionCall, tile: int) -> Any:
    """The result of all parts of the keys."""
    law, keys = call.law, operands.k.shape[2]
    blocks = ceil(keys / tile)
    length = law.split_size or ceil(blocks / (law.splits or 1)) * tile
    parts = [
        _part(xp, operands, call, range(begin, min(begin + length, keys), tile), min(begin + length, keys))
        for begin in range(0, keys, length)
    ]
    c = _exponent(call, operands.factors[0])
    if operands.sinks is not None and law.sink == LAST:
        parts[0] = _with_sinks(xp, parts[0], operands.sinks, law, c)
    ended = [_ended(xp, found, total, law, operands.factors[1]) for found, total, _ in parts]
    return ended[0] if len(parts) == 1 else _merged(xp, parts, ended, law, c)


def _exponent(call: AttentionCall, factor: Any) -> float:
    """The factor of scores whose exponential is that of 2; factors that are arrays are in the scores."""
    if call.softcap is not None:
        return normal(call.softcap * log2(EULER))
    return normal(normal(call.scale * log2(EULER)) * (factor if isinstance(factor, float) else 1.0))


def _part(xp: Any, operands: _Operands, call: AttentionCall, blocks: range, end: int) -> tuple[Any, Any, Any]:
    """O, l and m of the blocks of one part of the keys, which ends at `end`."""
    q, k, v, (of_k, of_v), law = operands.q, operands.k, operands.v, operands.factors, call.law
    rows = q.shape[:3]
    like = xp.settled(q)
    found = xp.zeros((*rows, v.shape[-1]), like)
    partial = xp.zeros((*rows, 4 if law.row_sum == THREADS else 1), like)
    m = xp.zeros((*rows, 1), like) - inf
    if operands.sinks is not None and law.sink == FIRST and blocks.start == 0:
        m, partial = xp.broadcast_to(operands.sinks, m.shape), partial + 1.0
    for begin in reversed(blocks) if law.descending else blocks:
        stop = min(begin + blocks.step, end)
        factor = _factor(xp, of_k if isinstance(of_k, float) else of_k[:, :, begin:stop], call)
        scores = _masked(xp, _scores(xp, q, k[:, :, begin:stop], call, factor), operands, begin)
        before, m = m, xp.maximum(m, xp.greatest(scores, (3,)))
        if call.window is not None and law.window_start == AT_TILE:
            m = _finite(xp, m)  # and so the maximum of later tiles is 0 at least
        p, a = _exponentials(xp, scores, before, m, law, _exponent(call, of_k))
        partial = _summed(xp, p, xp.mul(partial, a), law.row_sum)
        product = (law.p, law.operand), law.accumulator
        found = xp.mul(found, a)
        p = p if isinstance(of_v, float) else xp.mul(p, _turned(of_v[:, :, begin:stop]))
        if law.levels == 2:
            found = xp.add(found, xp.multiply(p, v[:, :, begin:stop], None, *product))
        else:
            found = xp.settled(xp.multiply(p, v[:, :, begin:stop], found, *product))
    return found, _total(partial, law.row_sum), m


def _with_sinks(xp: Any, part: tuple[Any, Any, Any], sinks: Any, law: Attention, c: float) -> tuple[Any, Any, Any]:
    """A part with sinks in its sum; each difference is fused with a product, as compilers of kernels contract it."""
    found, total, m = part
    sinks, safe = xp.settled(xp.quantized(sinks, BFLOAT16)), _finite(xp, m)
    if law.scale != EXPONENT:
        shift = normal(law.offset * log(2))
        return found, xp.add(total, _exp(xp, xp.add(xp.sub(sinks, safe), shift))), safe
    shift = xp.float32(xp.float64(safe) * c - float(law.offset))
    e = _exp2(xp, xp.to_float32(xp.float64(sinks) * normal(log2(EULER)) - xp.float64(shift)))
    return found, xp.add(total, e), safe


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
