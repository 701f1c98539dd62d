"""The array namespaces of products, for arrays within `jax.enable_x64`: sums in float64, or in float32 if exact."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore import Number, Rounding
from qcore.law.rounding import rounds_distance
from qcore.linalg.accumulator import Accumulator, rounding_program
from qcore.linalg.exactness import FloatRule
from qcore.linalg.law import Sums
from qcore.random.threefry import block_of_step, element_index, threefry, word_of_part
from qjax._namespace import Names
from qjax._rounding.array_law import arange

_HIDDEN = 1 << 23  # of float32
_SUBNORMAL = 2.0**-149  # the smallest float32 number
_NORMAL = 2.0**-126
_NAN = 0x7FC00000


class Float64(Names):
    """JAX's names, see `qcore.linalg.namespace.Float64`; `key` is an int32 array of two words, or None."""

    def __init__(self, key: jax.Array | None = None) -> None:
        self.key = key
        self._shared: Any = None  # the words of a block, and which of its four steps is traced if that is known

    @staticmethod
    def part(x: jax.Array, index: Any, axis: int, count: int = 1) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(x, index * count, count, axis)

    @staticmethod
    def plus(total: jax.Array, found: jax.Array) -> jax.Array:
        return total + found

    @staticmethod
    def unsigned_zero(x: jax.Array) -> jax.Array:
        """XLA may leave out a sum with 0."""
        return jnp.where(x == 0, jnp.zeros_like(x), x)

    @staticmethod
    def lanes(x: jax.Array) -> jax.Array:
        return x.view(jnp.int64)

    @staticmethod
    def floats(bits: jax.Array) -> jax.Array:
        return bits.view(jnp.float64)

    @staticmethod
    def trunc(x: jax.Array) -> jax.Array:
        """By one rounding of magnitudes: XLA has none toward zero, so `jnp.trunc` takes a floor and a ceiling."""
        lanes = jnp.int64 if x.dtype == jnp.float64 else jnp.int32
        sign = x.view(lanes) & jnp.iinfo(lanes).min
        return (jnp.floor(jnp.abs(x)).view(lanes) | sign).view(x.dtype)

    @staticmethod
    def float64(x: jax.Array) -> jax.Array:
        """XLA's conversion on CPUs makes zeros of subnormal numbers; what is float64 stays."""
        if x.dtype == jnp.float64:
            return x
        bits = x.view(jnp.int32)
        magnitude = bits & 0x7FFFFFFF
        small = magnitude.astype(jnp.float64) * _SUBNORMAL
        small = jnp.where(bits < 0, -small, small)
        return jnp.where(magnitude < _HIDDEN, small, x.astype(jnp.float64))

    @classmethod
    def product(cls, a: jax.Array, b: jax.Array) -> jax.Array:
        if a.shape[-1] == 1:
            return cls.float64(a) * cls.float64(b)
        batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (jnp.broadcast_to(cls.float64(x), (*batch, *x.shape[-2:])) for x in (a, b))
        axes = tuple(range(len(batch)))
        numbers = ((a.ndim - 1,), (b.ndim - 2,)), (axes, axes)
        # jnp.matmul names the dtype of the result, which vmap would not find outside of enable_x64
        return jax.lax.dot_general(a, b, numbers, precision=jax.lax.Precision.HIGHEST)

    @staticmethod
    def ascending(a: jax.Array, b: jax.Array) -> jax.Array | None:
        return None

    @staticmethod
    def sequential(
        a: jax.Array, b: jax.Array, accumulator: Accumulator, first: Any, addend: jax.Array | None
    ) -> jax.Array | None:
        return None

    @staticmethod
    def by_steps(
        a: jax.Array, b: jax.Array, accumulator: Accumulator, least: Any, scales: Any, addend: Any
    ) -> jax.Array | None:
        return None

    def fold(
        self, step: Callable[..., Any], total: Any, a: jax.Array, b: jax.Array, length: int, shares_words: bool = False
    ) -> Any:
        """A loop of XLA's over the full chunks, or one over each four of them, then the rest."""
        terms = a.shape[-1]
        full = terms // length
        if full:
            end = full * length
            left = jnp.moveaxis(a[..., :end].reshape(*a.shape[:-1], full, length), -2, 0)
            right = jnp.moveaxis(b[..., :end, :].reshape(*b.shape[:-2], full, length, b.shape[-1]), -3, 0)
            chunks = jnp.arange(full, dtype=jnp.int64), left, right

            total = self._by_fours(step, total, chunks) if shares_words else _scanned(step, total, chunks)
        if terms % length:
            total = step(total, full, a[..., full * length :], b[..., full * length :, :])
        return total

    def _by_fours(self, step: Callable[..., Any], total: Any, chunks: Any) -> Any:
        """The fold of steps in groups of four, which share a block of random words."""

        def body(total: Any, chunks: Any) -> Any:
            total = self._four(step, total, chunks)
            self._shared = None
            return total, None

        blocks, rest = divmod(len(chunks[0]), 4)
        if blocks:
            fours = jax.tree.map(lambda x: x[: 4 * blocks].reshape(blocks, 4, *x.shape[1:]), chunks)
            total, _ = jax.lax.scan(body, total, fours)
        return body(total, jax.tree.map(lambda x: x[4 * blocks :], chunks))[0] if rest else total

    def _four(self, step: Callable[..., Any], total: Any, chunks: Any) -> Any:
        """Up to four steps, from the first of a block on."""
        self._shared = *map(self.materialize, self._block(total.shape, chunks[0][0] >> 2)), None
        return _scanned(step, total, chunks)

    def rounded(  # type: ignore[override]
        self, x: jax.Array, number: Number, mode: Rounding, step: Any, random_bits: int
    ) -> jax.Array:
        if x.size == 0:
            return x
        program, constants = rounding_program(number, mode)
        word = None
        if mode.stochastic:
            word = self._words(x.shape, step, random_bits, mode).astype(jnp.int64) << 32
        return program.run(Names, x.view(jnp.int64), constants, (), word).view(jnp.float64)

    def _words(self, shape: tuple[int, ...], step: Any, random_bits: int, mode: Rounding) -> jax.Array:
        """The random words of a step, which may be traced."""
        block, part = block_of_step(jnp.asarray(step, jnp.int64), random_bits)
        y0, y1, known = self._shared or (*self._block(shape, block), None)
        part = part.astype(jnp.int32) if known is None else known
        return word_of_part(y0, y1, part, random_bits, rounds_distance(mode))

    def _block(self, shape: tuple[int, ...], block: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Two random words for each element."""
        assert self.key is not None  # checked where the key is given
        start = jax.lax.bitcast_convert_type(block * prod(shape), jnp.int32)  # the low word comes first
        index = element_index(arange, shape, (start[1], start[0]), prod(shape) >= 2**31)
        return threefry(self.key[0], self.key[1], *index)

    @staticmethod
    def float32(x: jax.Array) -> jax.Array:
        """Float64 rounded to float32, to nearest; all NaN are one.

        By way of integers: XLA makes zeros of subnormal numbers, and drops a conversion to float32 and back.
        """
        small = jnp.rint(x * (1 / _SUBNORMAL))
        negative = (x.view(jnp.int64) >> 63).astype(jnp.int32) & np.int32(-0x80000000)
        subnormal = jnp.abs(small).astype(jnp.int32) | negative
        bits = jnp.where(jnp.abs(x) < _NORMAL, subnormal, x.astype(jnp.float32).view(jnp.int32))
        return jnp.where(x == x, bits, np.int32(_NAN)).view(jnp.float32)


def _scanned(step: Callable[..., Any], total: Any, chunks: Any) -> Any:
    return jax.lax.scan(lambda total, chunk: (step(total, *chunk), None), total, chunks)[0]


class Float32(Float64):
    """`Float64` in float32, for sequential accumulators whose sums have the same bits, see `Sums.narrow`."""

    def __init__(self, key: jax.Array | None, sums: Sums) -> None:
        super().__init__(key)
        self.rule = FloatRule(sums.accumulator, multiples=sums.multiples, below=sums.below)
        self._multiples = sums.multiples and self.rule.by_floats  # whose formats have subnormal numbers

    def unsigned_zero(self, x: jax.Array) -> jax.Array:
        """x, or x with +0 for every -0. If no sum is rounded to zero, `finished` does it at the end."""
        return x if self._multiples else Float64.unsigned_zero(x)

    def finished(self, total: jax.Array) -> jax.Array:
        """The sum of all terms."""
        return Float64.unsigned_zero(total) if self._multiples else total

    def _four(self, step: Callable[..., Any], total: Any, chunks: Any) -> Any:
        """One loop over memory for all steps and their words.

        LLVM does not vectorize a loop that reads chunks at places that are themselves in memory. XLA cannot move the
        branch that copies the chunks into the loop.
        """
        chunks = jax.lax.cond(chunks[0][0] >= 0, lambda x: x, lambda x: jax.tree.map(jnp.zeros_like, x), chunks)
        y0, y1 = self._block(total.shape, chunks[0][0] >> 2)
        for part in range(len(chunks[0])):
            self._shared = y0, y1, part
            total = step(total, *(x[part] for x in chunks))
        return total

    @staticmethod
    def float64(x: jax.Array) -> jax.Array:
        """x as it is, as sums are float32 here."""
        return x

    def plus(self, total: jax.Array, found: jax.Array) -> jax.Array:
        return self.rule.plus(self, total, found)

    def rounded(  # type: ignore[override]
        self, x: jax.Array, number: Number, mode: Rounding, step: Any, random_bits: int
    ) -> jax.Array:
        word = self._words(x.shape, step, random_bits, mode) if mode.stochastic else None
        return self.rule.rounded(self, Names, x, word)
