"""Kernels for GPUs without one: Inductor writes them, Triton interprets them with the core's bits and compiles them."""

import absent_gpu
import numpy as np
import pytest
import torch
from support import assert_same_bits

import qcore
from qcore import affine
from qtorch._affine.launch import Bounds, fake_quantize_by_package
from qtorch._rounding.keys import make_noise
from qtorch._rounding.paths.kernels import decode_by_package, round_by_package
from qtorch._rounding.plan import digest_of_law, make_plan

pytestmark = pytest.mark.triton
heavy = pytest.mark.heavy

CAPABILITIES = (80, 90, 100)
KEY = 3

# A format, a shape, and how many kernels its blocks take: one reads what it rounds once.
KINDS = [
    ("float(5,2)", (500,), 1),
    ("fixed(8,4)", (500,), 1),
    ("fixed(8,4,wrap=True)", (500,), 1),
    ("e4m3fn", (500,), 1),
    ("e8m0fnu", (500,), 1),
    ("posit16", (500,), 1),
    ("block(8)", (300,), 3),
    ("block(8,dim=0)", (8, 40), 1),
    ("block(8,dim=1)", (20, 2), 3),
    ("block(8,dim=1)", (6, 2, 10), 3),
    ("mxfp8_e4m3", (4, 64), 1),
    ("mxfp4", (4, 64), 1),
    ("scaled(e4m3fn,{0:32})", (64, 6), 2),
    ("scaled(e4m3fn,{0:16,1:16})", (32, 32), 2),
    ("scaled(e4m3fn,{-1:None})", (8, 40), 1),
    # The array's largest magnitude in two, scales, what the elements of a block share, elements.
    ("nvfp4", (4, 32), 5),
]
MODES = ("nearest", "stochastic", "up", "odd")
SPLIT = 3  # kernels, of which the first has hundreds of programs, which the interpreter runs one by one
# Cases of ordinary runs, and what their kernels are compiled for there; heavy runs compile them for all.
ORDINARY = {("mxfp8_e4m3", "nearest"): (90,)}


def rounding_cases():
    for number, shape, count in KINDS:
        for mode in MODES if count < SPLIT else ("nearest",):
            usual, name = ORDINARY.get((number, mode), ()), f"{number}-{len(shape)}-{mode}"
            if usual:
                yield pytest.param(number, shape, count, mode, usual, id=name)
            rest = [one for one in CAPABILITIES if one not in usual] if mode in ("nearest", "stochastic") else (90,)
            yield pytest.param(number, shape, count, mode, rest, marks=heavy, id=f"{name}-rest" if usual else name)


def inputs(shape, dtype=np.float32, seed=0):
    """Any bits, and ordinary numbers."""
    random = np.random.default_rng(seed)
    carrier = np.dtype(dtype)
    bits = random.integers(0, 1 << 8 * carrier.itemsize, shape, f"u{carrier.itemsize}", endpoint=False).view(carrier)
    if carrier.kind == "i":
        return bits
    return np.where(random.random(shape) < 0.5, bits, random.standard_normal(shape).astype(carrier))


def leaves(results):
    return [leaf for one in results for leaf in leaves(one)] if isinstance(results, tuple) else [results]


def assert_launched(interpreter, expected, function, *arguments):
    """The program, whose results were as expected."""
    results, (program,) = interpreter.submit(absent_gpu.launch, function, *arguments).result()
    for one, other in zip(leaves(results), leaves(expected), strict=True):
        assert_same_bits(one, other)
    return program


def assert_compiles(compiler, program, capabilities=CAPABILITIES):
    for capability in capabilities:
        for compiled in compiler.submit(absent_gpu.assemble, program, capability).result():
            assert compiled["cubin"][:4] == b"\x7fELF"
            assert f".target sm_{capability}" in compiled["ptx"]
            assert_exact(compiled["ptx"])


def assert_exact(ptx):
    """No float is contracted, flushed or divided approximately."""
    assert not [
        line for line in ptx.splitlines() if any(word in line for word in ("fma.", "div.full", ".ftz", ".approx"))
    ]


@pytest.mark.parametrize(("number", "shape", "count", "mode", "capabilities"), list(rounding_cases()))
def test_rounding(interpreter, compiler, number, shape, count, mode, capabilities):
    x = inputs(shape)
    plan = make_plan(number, mode, torch.float32, None, False)
    tensor = torch.from_numpy(x)
    noise = make_noise(KEY, 24, 0, tensor) if plan.stochastic else None
    expected = qcore.quantize(x, number, mode, key=KEY if plan.stochastic else None)
    program = assert_launched(interpreter, expected, round_by_package, tensor, plan, noise)
    assert len(absent_gpu.kernels(program)) == count
    assert_compiles(compiler, program, capabilities)


class Rounded(torch.nn.Module):
    """What a user's program has after Dynamo, with a neighbour that does not change bits on a GPU."""

    def __init__(self, *text):
        super().__init__()
        self.text = *text, "", digest_of_law()

    def forward(self, x):
        return torch.ops.qtorch.round(x.abs(), None, None, *self.text)


@pytest.mark.parametrize(
    ("number", "mode", "dtype"),
    [
        ("float(5,2)", "nearest", np.float32),
        *(
            pytest.param(number, mode, dtype, marks=heavy)
            for number in ("fixed(8,4)", "fixed(8,4,wrap=True)", "e4m3fnuz", "e8m0fnu", "posit16")
            for mode in ("nearest", "up", "odd")
            for dtype in (np.float32, np.float64)
        ),
    ],
)
def test_operators_are_loops(interpreter, compiler, number, mode, dtype):
    """In programs for torch.compile, as on the CPU; the law is a part of the one kernel."""
    x = inputs((500,), dtype)
    program, result = interpreter.submit(absent_gpu.run, Rounded(number, mode), torch.from_numpy(x)).result()
    assert_same_bits(result, qcore.quantize(np.abs(x), number, mode))
    assert len(absent_gpu.kernels(program)) == 1
    assert "qtorch.round.default(" not in program  # as a call would be
    assert_compiles(compiler, program, (90,))


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("number", ["float(5,2)", "mxfp4"])
def test_carriers(interpreter, compiler, number, dtype):
    tensor = torch.from_numpy(inputs((4, 64), {2: np.int16, 8: np.float64}[getattr(torch, dtype).itemsize]))
    tensor = tensor.view(getattr(torch, dtype))  # of 16 bits any, NaN of all kinds as well
    plan = make_plan(number, "nearest", tensor.dtype, None, False)
    expected = torch.from_numpy(
        np.asarray(qcore.quantize(as_numpy(tensor), number, "nearest")).view(f"i{tensor.itemsize}")
    )
    program = assert_launched(interpreter, expected.view(tensor.dtype), round_by_package, tensor, plan, None)
    assert_compiles(compiler, program)


def as_numpy(tensor):
    if tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    from ml_dtypes import bfloat16

    return tensor.view(torch.int16).numpy().view(bfloat16)


CODED = [
    pytest.param("e4m3fn", (500,)),
    *(
        pytest.param(*case, marks=heavy)
        for case in [
            ("posit16", (500,)),
            ("float(5,10)", (500,)),
            ("fixed(8,4)", (500,)),
            ("mxfp8_e4m3", (4, 64)),
            ("mxint8", (4, 64)),
            ("scaled(e4m3fn,{0:32})", (64, 6)),
            ("nvfp4", (4, 32)),
        ]
    ),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("number", "shape"), CODED)
def test_encoding(interpreter, compiler, number, shape):
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    plan = make_plan(number, "nearest", torch.float32, None, True)
    expected = qcore.encode(x, number)
    program = assert_launched(interpreter, expected, round_by_package, torch.from_numpy(x), plan, None)
    assert_compiles(compiler, program)


@pytest.mark.parametrize(("number", "shape"), CODED)
def test_decoding(interpreter, compiler, number, shape):
    found = qcore.encode(np.random.default_rng(1).standard_normal(shape, np.float32), number)
    codes, scales = found if isinstance(found, tuple) else (found, None)
    expected = qcore.decode(codes, number, scales=scales)
    block, whole = scales if isinstance(scales, tuple) else (scales, None)
    tensors = [None if one is None else torch.from_numpy(np.array(one)) for one in (block, whole)]
    arguments = torch.from_numpy(np.array(codes)), qcore.parse(number), torch.float32, *tensors
    program = assert_launched(interpreter, expected, decode_by_package, *arguments)
    assert_compiles(compiler, program)


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((6, 5, 7), 1, "float32"),
        *(
            pytest.param(*case, marks=heavy)
            for case in [
                ((300,), None, "float32"),
                ((6, 5), 1, "float32"),
                ((6, 5), 0, "float32"),
                ((6, 5, 7), 1, "float16"),
                ((300,), None, "bfloat16"),
                ((300,), None, "float64"),
            ]
        ),
    ],
)
def test_fake_quantize(interpreter, compiler, shape, axis, dtype):
    tensor = torch.from_numpy(inputs(shape, np.float64 if dtype == "float64" else np.float32)).to(getattr(torch, dtype))
    random = np.random.default_rng(2)
    channels = () if axis is None else (shape[axis],)
    scale = np.asarray(random.random(channels) / 50 + 0.01, np.float32)
    zero_point = np.asarray(random.integers(0, 256, channels), np.int32)
    form = affine.AffineInteger(0, 255)
    with affine.Names.arithmetic():
        y, mask = affine.law.fake_quantize(affine.Names, as_numpy(tensor), scale, zero_point, axis, form)
    y = torch.from_numpy(np.asarray(y).view(f"i{tensor.itemsize}")).view(tensor.dtype)
    parameters = torch.from_numpy(scale), torch.from_numpy(zero_point), axis, Bounds(0.0, 255.0)
    expected = y, torch.from_numpy(mask.astype(np.uint8))
    program = assert_launched(interpreter, expected, fake_quantize_by_package, tensor, *parameters)
    assert_compiles(compiler, program, CAPABILITIES if axis is None else CAPABILITIES[1:2])
