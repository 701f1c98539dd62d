"""Designs by name against MMA-Sim, a public bit-accurate model of matrix instructions: hard sums, bit for bit.

The package is mmasim 2.1.1 (Xie et al., arXiv:2511.10909). Operands, addends and scales are zero, subnormal, infinite
and NaN among others; half of the sums cancel.
"""

import jax
import numpy as np
import pytest
import torch
from designs_support import cases, scales_of
from support import bits

import qjax
import qtorch
from qcore import Accumulator, encode, parse
from qcore.linalg import matmul
from qcore.linalg.designs import DESIGNS, FLOOR, MODEL, PARITY, least_exponent
from qcore.linalg.law import Sums, multiply
from qcore.linalg.namespace import Float64
from qjax.linalg.namespace import Float64 as OfJax
from qtorch.linalg.namespace import Float64 as OfTorch

SIDE = 100  # rows and columns: 10,000 sums a design
QUICK = 40
CHIPS = {"ada": "Ada Lovelace", "rtx_blackwell": "RTX Blackwell"}
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "tf32": torch.float32,
    "binary(8,23)": torch.float32,
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
NARROW = {"e2m1fn": 2, "e2m3fn": 0, "e3m2fn": 0}  # how far to the left codes stand in a byte
# The shapes and types of AMD's instructions for the last part of a name
MFMA = {
    ("cdna1", "mfma.f32"): "f32_32x32x2f32",
    ("cdna1", "mfma.f16"): "f32_32x32x8f16",
    ("cdna1", "mfma.bf16"): "f32_32x32x4bf16",
    ("cdna2", "mfma.f32"): "f32_16x16x4f32",
    ("cdna2", "mfma.f16"): "f32_16x16x16f16",
    ("cdna2", "mfma.bf16"): "f32_16x16x8bf16",
    ("cdna2", "mfma.bf16_1k"): "f32_16x16x16bf16_1k",
    ("cdna3", "mfma.f32"): "f32_16x16x4_f32",
    ("cdna3", "mfma.xf32"): "f32_16x16x8_xf32",
    ("cdna3", "mfma.f16"): "f32_16x16x16_f16",
    ("cdna3", "mfma.bf16"): "f32_16x16x16_bf16",
    ("cdna3", "mfma_k4.f16"): "f32_4x4x4_16b_f16",
    ("cdna3", "mfma_k4.bf16"): "f32_4x4x4_16b_bf16",
    ("cdna3", "mfma.fp8"): "f32_16x16x32_fp8_fp8",
    ("cdna3", "mfma.bf8"): "f32_16x16x32_bf8_bf8",
    ("cdna3", "mfma.fp8_bf8"): "f32_16x16x32_fp8_bf8",
}
HAS = [name for name, one in DESIGNS.items() if MODEL in one.evidence and "by rule" not in one.evidence]
PLAIN = [name for name in HAS if not DESIGNS[name].block]
BLOCKS = [name for name in HAS if DESIGNS[name].block]
USUAL = [
    "volta.mma.f16.f16",
    "turing.mma_k4.f16",
    "ampere.mma.bf16",
    "ada.mma.e4m3_e5m2",
    "hopper.wgmma.e5m2",
    "hopper.wgmma.f16.f16",
    "blackwell.tcgen05.e4m3_e2m1",
    "cdna1.mfma.f16",
    "cdna1.mfma.bf16",
    "cdna2.mfma.f16",
    "cdna3.mfma.bf16",
    "cdna3.mfma.fp8_bf8",
]
USUAL_BLOCKS = ["rtx_blackwell.mma.mxe4m3_mxe3m2", "blackwell.tcgen05.nvf4"]


def usually(names, usual):
    return [pytest.param(name, marks=[] if name in usual else pytest.mark.heavy) for name in names]


def simulator(name):
    """The model of a design."""
    from mmasim import amd, nv_ptx

    chip, instruction, operands, *half = name.split(".")
    if chip.startswith("cdna"):
        return amd.MFMA(chip.upper(), MFMA[chip, f"{instruction}.{operands}"])
    kind, _, length = instruction.partition("_k")
    first, second = operands.split("_") if "_" in operands else (operands, operands)
    narrow = {first, second} & {"e2m1", "e2m3", "e3m2"}
    long = {"f16": 16, "bf16": 16, "tf32": 8}.get(first, 32)
    if chip in ("volta", "turing"):
        long = 4 if chip == "volta" else 8
    terms, d, arch = int(length) if length else long, "f16" if half else "f32", CHIPS.get(chip, chip.capitalize())
    if kind == "mma":
        shape = "m8n8k4" if chip in ("volta", "turing") and terms == 4 else f"m16n8k{terms}"
        more = ".kind::f8f6f4" if narrow else ""
        return nv_ptx.MMA(arch, f"{shape}{more}.{d}.{first}.{second}.{d}")
    if kind == "wgmma":
        return nv_ptx.WGMMA(arch, f"m64n8k{terms}.{d}.{first}.{second}")
    group = {16: "f16", 8: "tf32", 32: "f8f6f4"}[terms]
    return nv_ptx.TCGen05MMA(arch, f"m64n8k{terms}.kind::{group}.{d}.{first}.{second}")


def tensor(x, number):
    if number in NARROW:
        return torch.from_numpy(np.asarray(encode(x, number, "nearest"), np.uint8) << NARROW[number])
    return torch.from_numpy(x.copy()).to(DTYPES[number])


def same(found, expected, design):
    """Equal bits; AMD's NaN in the model is that of the machine that runs it."""
    expected = expected.to(torch.float32).numpy() if expected.dtype != torch.float16 else half_bits(expected)
    equal = bits(found) == bits(expected)
    return equal | (np.isnan(found) & np.isnan(expected)) if design.nan == 0x7FC00000 else equal


def half_bits(x):
    """Float16 as float32, NaN with its payload."""
    wide = x.to(torch.float32).numpy()
    lanes = x.view(torch.int16).numpy().astype(np.uint32) & 0xFFFF
    nan = ((lanes & 0x8000) << 16) | 0x7F800000 | ((lanes & 0x3FF) << 13)
    return np.where(np.isnan(wide), nan.view(np.float32), wide)


def by_torch(a, b, c, name):
    return qtorch.linalg.matmul(*map(torch.from_numpy, (a, b, c)), accumulator=name).numpy()


def by_jax(a, b, c, name):
    return np.asarray(jax.jit(lambda a, b, c: qjax.linalg.matmul(a, b, c, accumulator=name))(a, b, c))


def compare(name, side, multiply_by, seed=0):
    design, peer = DESIGNS[name], simulator(name)
    late = design.law in (FLOOR, PARITY)
    rng, terms = np.random.default_rng(sum(map(ord, name)) + seed), design.step if late else peer.k
    a, b, c = cases(rng, name, side, terms, side)
    if late:  # the model takes torch's exponents of infinite and NaN addends and operands, which torch does not define
        a, b = (np.where(np.isinf(x), np.float32(1), x) for x in (a, b))
        c = np.where(np.isfinite(c), c, np.float32(1))
    kept = "float16" if design.number == "float16" else "binary(8,23)"
    expected = peer(tensor(a, design.operands[0]), tensor(b, design.operands[1]), tensor(c, kept))
    found = multiply_by(a, b, c, name)
    right = same(found, expected, design)
    assert right.all(), [(a[i], b[:, j], c[i, j], found[i, j], expected[i, j]) for i, j in np.argwhere(~right)[:2]]


@pytest.mark.parametrize("name", usually(PLAIN, USUAL))
def test_hard_sums(name):
    side = QUICK if name in USUAL else SIDE
    compare(name, side, lambda a, b, c, name: matmul(a, b, c, accumulator=name))


@pytest.mark.heavy
@pytest.mark.parametrize("name", PLAIN)
def test_hard_sums_of_kernels(name):
    """10,000 sums in each package."""
    compare(name, SIDE, lambda a, b, c, name: matmul(a, b, c, accumulator=name))
    compare(name, SIDE, by_torch)
    compare(name, SIDE, by_jax)


@pytest.mark.parametrize("name", ["ampere.mma.bf16", "hopper.wgmma.e5m2", "cdna1.mfma.f16"])
def test_fewer_hard_sums_of_kernels(name):
    compare(name, QUICK, by_torch, 1)
    compare(name, QUICK, by_jax, 1)


def block_simulator(name):
    from mmasim import nv_ptx

    design, (chip, instruction, operands) = DESIGNS[name], name.split(".")
    first, second = operands.split("_") if operands.count("mx") == 2 else (operands, operands)
    first, second = ("e2m1",) * 2 if design.step == 64 else (first[2:], second[2:])
    scale = "ue8m0" if design.scale == "e8m0" else "ue4m3"
    kind = "mxf8f6f4" if design.step == 32 else "mxf4" if operands == "mxf4" else "mxf4nvf4"
    shape, more = f"n8k{design.step}", f"kind::{kind}.block{design.block}"
    if instruction == "mma":
        return nv_ptx.MMABlockScale(CHIPS[chip], f"m16{shape}.{more}.f32.{first}.{second}.f32.{scale}")
    return nv_ptx.TCGen05MMABlockScale("Blackwell", f"m128{shape}.{more}.f32.{first}.{second}.{scale}")


def packed(x):
    """E2M1 numbers along the last axis, two in a byte, the first in the high half."""
    codes = np.searchsorted(np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6]), np.abs(x)) | np.signbit(x) << 3
    return torch.from_numpy((codes[..., ::2] << 4 | codes[..., 1::2]).astype(np.uint8))


def scaled(name, side):
    """Operands, scales and addends of a design, how its chunks are summed, and the model's results."""
    design, peer, rng = DESIGNS[name], block_simulator(name), np.random.default_rng(sum(map(ord, name)))
    a, b, c = cases(rng, name, side, design.step, side)
    count = design.step // design.block
    of_a, of_b = scales_of(rng, design.scale, (side, count)), scales_of(rng, design.scale, (count, side))
    a[:4] = 0  # whole groups of zeros
    kind = torch.float8_e8m0fnu if design.scale == "e8m0" else torch.float8_e4m3fn
    if design.step == 64:
        operands = packed(a), packed(np.ascontiguousarray(b.T)).T
    else:
        operands = tensor(a, design.operands[0]), tensor(b, design.operands[1])
    expected = peer(*operands, torch.from_numpy(c), *(torch.from_numpy(x).to(kind) for x in (of_a, of_b))).numpy()
    least = tuple(least_exponent(parse(text)) for text in design.operands)
    return (a, b, of_a, of_b, c), Sums(Accumulator.of(name), False, least=least), expected


def by_law(xp, given, sums):
    """The law of elements and scales that are given, without rounding of operands."""
    with np.errstate(all="ignore"):
        return multiply(xp, *given[:2], sums, tuple(given[2:4]), given[4])


def assert_scaled(found, expected, given, nan):
    right = (bits(found) == bits(expected)) | (np.isnan(found) & (bits(expected) == nan))
    wrong = [(given[0][i], given[1][:, j], given[4][i, j], found[i, j], expected[i, j]) for i, j in np.argwhere(~right)]
    assert not wrong, wrong[:2]


@pytest.mark.parametrize("name", usually(BLOCKS, USUAL_BLOCKS))
def test_hard_sums_with_scales(name):
    given, sums, expected = scaled(name, QUICK if name in USUAL_BLOCKS else SIDE)
    assert_scaled(by_law(Float64(), given, sums).astype(np.float32), expected, given, DESIGNS[name].nan)
    by_kernel = by_law(OfTorch(), [torch.from_numpy(x) for x in given], sums).to(torch.float32).numpy()
    assert_scaled(by_kernel, expected, given, DESIGNS[name].nan)


@pytest.mark.heavy
@pytest.mark.parametrize("name", BLOCKS)
def test_hard_sums_with_scales_of_kernels(name):
    """10,000 sums in each package."""
    given, sums, expected = scaled(name, SIDE)
    with jax.enable_x64(True):
        by_xla = jax.jit(lambda *x: OfJax.float32(by_law(OfJax(), x, sums)))(*given)
    by_kernel = by_law(OfTorch(), [torch.from_numpy(x) for x in given], sums).to(torch.float32).numpy()
    for found in (by_law(Float64(), given, sums).astype(np.float32), by_kernel, np.asarray(by_xla)):
        assert_scaled(found, expected, given, DESIGNS[name].nan)
