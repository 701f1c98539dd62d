"""The same bits everywhere: every format and mode on every backend, on hard inputs."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from covering import some
from support import BACKENDS, DTYPES, OTHERS, assert_same_bits, by_numpy, key_for, to_torch

import qtorch
from benchmarks.support.inputs import FORMATS, MODES, MORE, hard_inputs
from qcore import NAMED, BlockFloatingPoint, FixedPoint, FloatingPoint, Posit
from qcore.formats.block import BlockNumber
from qcore.law.carrier import FLOAT32

KEY = 0x1234_5678_9ABC_DEF0 >> 32


USUAL = ("nearest", "stochastic")
IN_TORCH = {name: backend for name, backend in BACKENDS.items() if name.startswith("torch")}


inputs = lru_cache(4)(hard_inputs)


def pairs():
    """The first formats of a kind in both usual modes, others in one; kinds take the other modes by turns.

    A kind's formats share every third of them, formats of blocks, whose kernels take GCC longest, two, and one usual
    mode; the first of another kind has both. Of more than eight of a kind half of the later ones are heavy. A few of a
    kind compile programs.
    All modes of all FORMATS are among the heavy tests, and in benchmarks.consistency. JAX without jit takes the
    first of a kind in nearest, and one format of blocks; under jit it takes FORMATS in nearest, and otherwise two of
    a kind. Usual modes of blocks without JAX are heavy.
    """
    every = [*FORMATS, *MORE]
    kinds = [number.reduce(FLOAT32)[0] for number in every]
    order, less_usual = list(dict.fromkeys(kinds)), [mode for mode in MODES if mode not in USUAL]
    for i, (number, kind) in enumerate(zip(every, kinds, strict=True)):
        place, count, of_blocks = kinds[:i].count(kind), kinds.count(kind), isinstance(number, BlockNumber)
        eager = place == 0 and (not of_blocks or isinstance(number, BlockFloatingPoint))
        shared = less_usual[place::count] or [less_usual[place % len(less_usual)]]
        for mode in MODES:
            of_few = place > 1 and (mode != "nearest" or i >= len(FORMATS))
            backends = BACKENDS if eager and mode == "nearest" else IN_TORCH if of_few else OTHERS
            if i < len(FORMATS) or mode in (*USUAL, *shared):
                few = shared[: place < (4 if of_blocks else len(less_usual))]
                few = [mode for mode in few if (less_usual.index(mode) + order.index(kind)) % 3 == 0]
                usual = USUAL if place < 4 and not of_blocks else USUAL[place % 2 :][:1]
                usual = () if i >= len(FORMATS) and count > 8 and place >= 4 and place % 4 in (1, 2) else usual
                chosen = mode in (*usual, *(few if count > 1 else shared[:2]))
                chosen = chosen and not (of_blocks and of_few and mode in USUAL)
                marks = [] if chosen else [pytest.mark.heavy]
                yield pytest.param(number, mode, backends, id=f"{number}-{mode}", marks=marks)


@pytest.mark.parametrize(("number", "mode", "backends"), list(pairs()))
def test_float32(number, mode, backends):
    for x in inputs(number, 40_000):  # more than a kernel on one thread takes
        expected = by_numpy(x, number, mode, KEY)
        for name, backend in backends.items():
            assert_same_bits(backend(x, number, mode, KEY), expected, f"{name}: {number} {mode}")


OTHER_PAIRS = [
    (FloatingPoint(5, 2), "nearest"),
    (FixedPoint(8, 4), "stochastic"),
    (BlockFloatingPoint(8), "nearest"),
    (NAMED["e4m3fnuz"][0], "nearest"),
    (NAMED["posit16"][0], "nearest"),
]


@some(
    *((0, 0), (1, 2), (2, 1), (3, 2), (4, 0)),
    **{"number, mode": OTHER_PAIRS, "dtype": ["float16", "bfloat16", "float64"]},
)
def test_other_dtypes(number, mode, dtype):
    for x in hard_inputs(number, 70_000, DTYPES[dtype]):  # more than a kernel on one thread takes
        expected = by_numpy(x, number, mode, KEY)
        for name, backend in (BACKENDS if number is OTHER_PAIRS[0][0] else OTHERS).items():
            assert_same_bits(backend(x, number, mode, KEY), expected, f"{name}: {number} {mode} {dtype}")


INLINE = [
    (FloatingPoint(5, 2), "nearest"),
    (FloatingPoint(5, 2), "stochastic"),
    (FloatingPoint(9, 2), "nearest"),
    (FixedPoint(8, 4), "nearest_up"),
    (FixedPoint(8, 4, clamp=False), "nearest_down"),
    (FixedPoint(24, 20, symmetric=True), "stochastic"),
    (BlockFloatingPoint(8), "stochastic"),
    (BlockFloatingPoint(16, 1), "nearest_away"),
    (BlockFloatingPoint(22, 2), "nearest"),
    (NAMED["e4m3fn"][0], "odd"),
    (NAMED["e8m0fnu"][0], "stochastic"),
    (FixedPoint(8, 4, wrap=True), "nearest"),
    (NAMED["posit16"][0], "stochastic"),
    (Posit(32, 3), "nearest"),
]


@some((0, 0), first=range(4), dynamic=[False, True])
def test_inline(first, dynamic):
    """Traced into a caller's program, whose neighbouring operations must not change it; every fourth in one program."""
    cases = INLINE[first::4]

    def program(key, *xs):
        return [
            qtorch.quantize(x.abs().neg(), number, mode, key=key_for(mode, key))
            for x, (number, mode) in zip(xs, cases, strict=True)
        ]

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, dynamic=dynamic)
    arrays = [hard_inputs(number, 100_000)[-4:] for number, _ in cases]
    for i in range(2 if dynamic else 4):
        xs = [of_one[0 if dynamic else i % len(of_one)] for of_one in arrays]
        xs = [x[..., : x.shape[-1] // 2 + 1] for x in xs] if dynamic and i else xs
        found = compiled(torch.tensor([0, 5]), *map(to_torch, xs))
        for one, x, (number, mode) in zip(found, xs, cases, strict=True):
            assert_same_bits(one, by_numpy(-np.abs(x), number, mode, 5), f"{number} {mode}")


def test_empty_and_0d():
    for number in (FloatingPoint(5, 2), FixedPoint(8, 4), BlockFloatingPoint(8)):
        for x in (np.float32(0.3), np.zeros((0, 3), np.float32), np.float32([-0.3]), np.ones((1, 1, 1), np.float32)):
            x = np.asarray(x)
            for mode in ("nearest", "stochastic"):
                expected = by_numpy(x, number, mode, KEY)
                assert expected.shape == x.shape
                for name, backend in (OTHERS if mode == "nearest" else IN_TORCH).items():
                    assert_same_bits(backend(x, number, mode, KEY), expected, f"{name}: {number} {mode} {x.shape}")


@pytest.mark.parametrize(
    "shape",
    [
        *(pytest.param(shape, marks=pytest.mark.heavy) for shape in ((5, 1, 7), (1, 5, 7), (5, 7, 1), (3, 4))),
        (9,),
        (2, 3, 4, 5),
    ],
)
def test_block_shapes(shape):
    """JAX takes each dimension of one shape."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) ** 5
    for dim in range(-1, len(shape)):
        expected = by_numpy(x, BlockFloatingPoint(6, dim), "nearest", None)
        for name, backend in (OTHERS if len(shape) == 4 else IN_TORCH).items():
            assert_same_bits(backend(x, BlockFloatingPoint(6, dim), "nearest", None), expected, f"{name} {shape} {dim}")
