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


def _scaled_fp8() -> list[Entry]:
    """E4M3 for inputs and weights, E5M2 for gradients, with a scale of each tensor."""
    kept, gradient = (Operand(number, scale=Scale()) for number in ("e4m3fn:saturate", "e5m2:saturate"))
    backward = Product(gradient, kept)
    return [Entry("*", "linear", Product(kept, kept), backward, backward)]


def recipe_for(model: str, arithmetic: str) -> Any:
    """A recipe for a model; None for float32."""
    if arithmetic == "float32":
        return None
    if arithmetic in MACHINES:
        return (Recipe(_scaled_fp8()) if arithmetic == "hopper" else RECIPES["mxfp8"]).on(arithmetic)
    return Recipe(_fp8(3 if model == "gpt" else 2) if arithmetic == "fp8" else _mxfp4())


ARITHMETIC = ("float32", "fp8", "mxfp4")
MACHINES = ("hopper", "blackwell")  # whose instructions multiply: FP8 with scales of tensors, and MXFP8
