"""Designs by name against MMA-Sim, the public bit-accurate model of matrix instructions: hard sums, bit for bit.

They run where the environment variable MMA_SIM names a checkout of github.com/microsoft/MMA-Sim.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from designs_support import cases, scales_of
from support import bits

from qcore import Accumulator, Product, parse
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.designs import DESIGNS, least_exponent
from qcore.linalg.forms import FORWARD, MatrixForm
from qcore.linalg.law import Sums, multiply
from qcore.linalg.namespace import Float64

FOLDER = os.environ.get("MMA_SIM", "")
SIDE = 100  # rows and columns: 10,000 sums a design
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        not (Path(FOLDER) / "mmasim").is_dir(), reason="MMA_SIM names no checkout of github.com/microsoft/MMA-Sim"
    ),
]
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
NO_PEER = {"e2m1fn", "e2m3fn", "e3m2fn"}  # MMA-Sim's code has none of these without scales of 64 terms
NAMES = [name for name, one in DESIGNS.items() if not one.block and not NO_PEER & {*one.operands}]


def simulator(name):
    """MMA-Sim's model of a design, which multiplies SIDE rows by SIDE columns."""
    if FOLDER not in sys.path:
        sys.path.append(FOLDER)
    from mmasim.simulator import amd, arithmetic, nv_ptx

    chip, instruction, operands, *half = name.split(".")
    if chip.startswith("cdna"):
        # Its function of pairs asserts float32, and its instructions hand it their own types.
        amd.pairwise_dot = lambda a, b, flushes: arithmetic.pairwise_dot(a.float(), b.float(), flushes)
        found = amd.mfma(chip.upper(), MFMA[chip, f"{instruction}.{operands}"])
    else:
        kind, _, length = instruction.partition("_k")
        first, second = operands.split("_") if "_" in operands else (operands, operands)
        long = {"f16": 16, "bf16": 16, "tf32": 8}.get(first, 32)
        if chip in ("volta", "turing"):
            long = 4 if chip == "volta" else 8
        terms = int(length) if length else long
        d = "f16" if half else "f32"
        arch = CHIPS.get(chip, chip.capitalize())
        if kind == "mma":
            shape = "m8n8k4" if chip in ("volta", "turing") and terms == 4 else f"m16n8k{terms}"
            found = nv_ptx.mma(arch, f"{shape}.{d}.{first}.{second}.{d}")
        else:
            shape = f"m64n8k{terms}"
            made = nv_ptx.wgmma if kind == "wgmma" else nv_ptx.tcgen05mma
            found = made(arch, f"{shape}.{d}.{first}.{second}")
    found.m = found.n = SIDE
    return found


def tensor(x, number):
    return torch.from_numpy(x.copy()).to(DTYPES[number])  # the peer flushes in place


@pytest.mark.parametrize("name", NAMES)
def test_hard_sums(name):
    design, peer = DESIGNS[name], simulator(name)
    a, b, c = cases(np.random.default_rng(sum(map(ord, name))), name, SIDE, peer.k, SIDE)
    kept = "float16" if design.number == "float16" else "binary(8,23)"
    expected = peer(tensor(a, design.operands[0]), tensor(b, design.operands[1]), tensor(c, kept))
    product = Product(None, None, name)
    found = multiply_arrays(MatrixForm(), FORWARD, product, a, b, b.shape, None, addend=c).reshape(SIDE, SIDE)
    expected = expected.to(torch.float32).numpy() if expected.dtype != torch.float16 else half_bits(expected)
    same = bits(found) == bits(expected)
    if design.nan == 0x7FC00000:  # on AMD's chips the peer's NaN is that of the machine that runs it
        same |= np.isnan(found) & np.isnan(expected)
    assert same.all(), [(a[i], b[:, j], c[i, j], found[i, j], expected[i, j]) for i, j in np.argwhere(~same)[:2]]


BLOCKS = [name for name, one in DESIGNS.items() if one.block and (one.step == 64 or not NO_PEER & {*one.operands})]


def block_simulator(name):
    if FOLDER not in sys.path:
        sys.path.append(FOLDER)
    from mmasim.simulator import nv_ptx

    design, (chip, instruction, operands) = DESIGNS[name], name.split(".")
    first, second = operands.split("_") if operands.count("mx") == 2 else (operands, operands)
    first, second = ("e2m1",) * 2 if design.step == 64 else (first[2:], second[2:])
    scale = "ue8m0" if design.scale == "e8m0" else "ue4m3"
    shape, block = f"n8k{design.step}", f"block{design.block}"
    if instruction == "mma":
        found = nv_ptx.mma_block_scale(CHIPS[chip], f"m16{shape}.{block}.f32.{first}.{second}.f32.{scale}")
    else:
        found = nv_ptx.tcgen05mma_block_scale("Blackwell", f"m128{shape}.{block}.f32.{first}.{second}.{scale}")
    found.m = found.n = SIDE
    return found


def packed(x):
    """E2M1 numbers along the last axis, two in a byte, the first in the low half."""
    codes = np.searchsorted(np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6]), np.abs(x)) | np.signbit(x) << 3
    return torch.from_numpy((codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8))


@pytest.mark.parametrize("name", BLOCKS)
def test_hard_sums_with_scales(name):
    design, peer = DESIGNS[name], block_simulator(name)
    rng = np.random.default_rng(sum(map(ord, name)))
    a, b, c = cases(rng, name, SIDE, design.step, SIDE)
    c[np.isinf(c)] = 1  # the peer raises OverflowError
    count = design.step // design.block
    of_a, of_b = scales_of(rng, design.scale, (SIDE, count)), scales_of(rng, design.scale, (count, SIDE))
    kind = torch.float8_e8m0fnu if design.scale == "e8m0" else torch.float8_e4m3fn
    if design.step == 64:
        operands = packed(a), packed(np.ascontiguousarray(b.T)).T
    else:
        operands = tensor(a, design.operands[0]), tensor(b, design.operands[1])
    expected = peer(*operands, torch.from_numpy(c), *(torch.from_numpy(x).to(kind) for x in (of_a, of_b))).numpy()
    least = tuple(least_exponent(parse(text)) for text in design.operands)
    sums = Sums(Accumulator.of(name), False, least=least)
    with np.errstate(all="ignore"):
        found = multiply(Float64(), a, b, sums, (of_a, of_b), c).astype(np.float32)
    same = (bits(found) == bits(expected)) | (np.isnan(found) & (bits(expected) == design.nan))
    assert same.all(), [(a[i], b[:, j], c[i, j], found[i, j], expected[i, j]) for i, j in np.argwhere(~same)[:2]]


def half_bits(x):
    """Float16 as float32, NaN with its payload."""
    wide = x.to(torch.float32).numpy()
    lanes = x.view(torch.int16).numpy().astype(np.uint32) & 0xFFFF
    nan = ((lanes & 0x8000) << 16) | 0x7F800000 | ((lanes & 0x3FF) << 13)
    return np.where(np.isnan(wide), nan.view(np.float32), wide)
