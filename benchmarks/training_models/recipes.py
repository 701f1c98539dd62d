"""The arithmetic of `benchmarks.same_training`: what the layers' products are rounded to."""

from __future__ import annotations

from typing import Any

from qcore import RECIPES, Accumulator, BlockScaled, Entry, Operand, Product, Recipe, Scale, parse

_E4M3, _E2M1 = parse("e4m3fn"), parse("e2m1fn")
_BLOCKS = Accumulator("binary(11,52)", chunk=32)  # exact within a block, float64 between


def _rows(*axes: int) -> BlockScaled:
    """E4M3 with a power of two for each set of numbers that is summed up, so that sums are exact."""
    return BlockScaled(_E4M3, dict.fromkeys(axes), "rceil")


def _blocks(axis: int, stochastic: bool = False) -> Operand:
    """OCP MXFP4 along an axis."""
    return Operand(BlockScaled(_E2M1, {axis: 32}), "stochastic" if stochastic else "nearest")


def _fp8(rank: int) -> list[Entry]:
    batch = tuple(range(-rank, -1))  # of inputs with so many dimensions
    linear = (
        Product(_rows(-1), _rows(-1)),
        Product(_rows(-1), _rows(-2)),
        Product(_rows(*batch), _rows(*batch)),
    )
    inner, outer = (1, 2, 3), (0, 2, 3)
    conv = (
        Product(_rows(*inner), _rows(*inner)),
        Product(_rows(*inner), _rows(*outer)),
        Product(_rows(*outer), _rows(*outer)),
    )
    return [Entry("*", "linear", *linear), Entry("*", "conv", *conv)]


def _mxfp4() -> list[Entry]:
    """Gradients are rounded stochastically, as Tseng et al., "Training LLMs with MXFP4", 2025."""
    linear = (
        Product(_blocks(-1), _blocks(-1), _BLOCKS),
        Product(_blocks(-1, True), _blocks(-2, True), _BLOCKS),
        Product(_blocks(-2, True), _blocks(-2, True), _BLOCKS),
    )
    conv = (
        Product(_blocks(1), _blocks(1)),
        Product(_blocks(1, True), _blocks(0, True)),
        Product(_blocks(0, True), _blocks(0, True)),
    )
    return [Entry("*", "linear", *linear), Entry("*", "conv", *conv)]


def _scaled(kept: str, gradient: str) -> Recipe:
    """One format for inputs and weights and one for gradients, with a scale of each tensor."""
    first, second = (Operand(f"{name}:saturate", scale=Scale()) for name in (kept, gradient))
    backward = Product(second, first)
    return Recipe([Entry("*", "linear", Product(first, first), backward, backward)])


_FP8 = _scaled("e4m3fn", "e5m2")
_OF_BF16 = Product("bfloat16", "bfloat16")
_BF16 = Recipe([Entry("*", "linear", _OF_BF16, _OF_BF16, _OF_BF16)])

# Recipes with exact sums beside those of machines, whose instructions multiply; models with linear layers only.
MACHINES = {
    "fp8_scaled": _FP8,
    "hopper": _FP8.on("hopper"),
    "cdna3": _scaled("e4m3fnuz", "e5m2fnuz").on("cdna3"),
    "mxfp8": RECIPES["mxfp8"],
    "blackwell": RECIPES["mxfp8"].on("blackwell"),
    "bf16": _BF16,
    "ampere": _BF16.on("ampere"),
}


def recipe_for(model: str, arithmetic: str) -> Any:
    """A recipe for a model; None for float32."""
    if arithmetic == "float32":
        return None
    if arithmetic in MACHINES:
        return MACHINES[arithmetic]
    return Recipe(_fp8(3 if model == "gpt" else 2) if arithmetic == "fp8" else _mxfp4())


ARITHMETIC = ("float32", "fp8", "mxfp4")
