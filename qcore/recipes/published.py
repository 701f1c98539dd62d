"""Published recipes. A dagger marks statements from memory that were not checked in the paper again.

They define the products of layers. Formats of optimizers, loss scales and the operations of a model between its layers
are the program's.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from qcore.arguments import quoted
from qcore.formats.block import NVFP4, BlockFloatingPoint, BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number
from qcore.linalg.accumulator import Accumulator
from qcore.linalg.operands import Hadamard, Operand, Scale
from qcore.linalg.product import Product
from qcore.recipes.recipe import Entry, Recipe, check_alone

_E5M2, _FP16 = FloatingPoint(5, 2), FloatingPoint(6, 9)
_E4M3_SATURATING = BinaryFloat(4, 3, specials="fn", overflow="saturate")
_E5M2_SATURATING = BinaryFloat(5, 2, specials="ieee", overflow="saturate")
# Sun et al. add 4 to the usual bias of 7 (†); too large numbers become the largest one.
_E4M3_SUN = BinaryFloat(4, 3, bias=11, specials="fnuz", overflow="saturate")
_CHUNKED = Accumulator(_FP16, chunk=64, inner=Accumulator(_FP16, chunk=1))
_HALF, _BF16 = Product(_FP16, _FP16, _CHUNKED), Product("bfloat16", "bfloat16")


def _alike(product: Product) -> Recipe:
    """One product for all three of all layers."""
    return Recipe([Entry("*", None, product, product, product)])


def _mxfp8(axis: int) -> BlockScaled:
    """OCP MXFP8 E4M3 along an axis, with scales rounded up, so that no element saturates."""
    return BlockScaled(BinaryFloat(4, 3, specials="fn"), {axis: 32}, "rceil")


def _chunked() -> Recipe:
    """Wang et al., "Training Deep Neural Networks with 8-bit Floating Point Numbers", 2018, sections 2 and 3.

    1-5-2 operands, to nearest (†); 1-6-9 sums, rounded to nearest after every addition, in chunks of 64 whose sums are
    added alike. The input of the first layer, and all operands of the last one, are 1-6-9 (†).
    """
    by_input, by_gradient = Product(_FP16, _E5M2, _CHUNKED), Product(_E5M2, _FP16, _CHUNKED)
    eight = Product(_E5M2, _E5M2, _CHUNKED)
    return Recipe(
        [
            Entry("*", None, _HALF, _HALF, _HALF, last=1),
            Entry("*", None, by_input, eight, by_gradient, first=1),
            Entry("*", None, eight, eight, eight),
        ]
    )


def _deepseek() -> Recipe:
    """DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.

    E4M3 for all operands; scales amax / 448 in float32, just in time, of 1 x 128 tiles of inputs and gradients along
    the sum and of 128 x 128 blocks of weights; sums promoted to float32 every 128 terms. Here the 128 terms are summed
    exactly; an inner accumulator can give them the sums of Hopper (docs/products.md). All linear layers but the last
    one, the head; norms, gating, attention and embedding stay in high precision. Two details are left out (†):
    scales that are powers of two for the inputs of linear layers after attention, and E5M6 for such inputs in
    caches.
    """
    tile, block = (Operand(_E4M3_SATURATING, scale=Scale(rows, 128)) for rows in (1, 128))
    promoted = Accumulator(chunk=128)
    by_weight = Product(tile, block, promoted)
    return Recipe(
        [
            Entry(layer_type="linear", last=1),
            Entry("*", "linear", by_weight, by_weight, Product(tile, tile, promoted)),
        ]
    )


def _nvfp4() -> Recipe:
    """NVIDIA, "Pretraining Large Language Models with NVFP4", 2025, section 4.

    NVFP4 for all operands of linear layers: tiles of 1 x 16 along the sum, of 16 x 16 for weights; gradients rounded
    stochastically, the rest to nearest; both operands of the weight's gradient after a random Hadamard transform of 16,
    with one vector of signs. The law of NVFP4 and the signs are Transformer Engine's. Sums in float32. About 15 % of
    the linear layers stay in bfloat16: in the 12B model the layers of its first 2 and last 8 blocks (†), here the first
    and the last layer. Entries in front can add more.
    """
    signs = Hadamard(law="te")
    tile, block = NVFP4(), NVFP4({-2: 16, -1: 16})
    gradient = Operand(tile, "stochastic")
    return Recipe(
        [
            Entry("*", "linear", _BF16, _BF16, _BF16, first=1, last=1),
            Entry(
                layer_type="linear",
                forward=Product(tile, block),
                grad_input=Product(gradient, block),
                grad_weight=Product(Operand(tile, "stochastic", transform=signs), Operand(tile, transform=signs)),
            ),
        ]
    )


def _four_over_six() -> Recipe:
    """Cook et al., "Four Over Six: More Accurate NVFP4 Quantization with Adaptive Block Scaling", 2025.

    NVFP4 where each block's largest number becomes 6 or 4, by the sum of absolute errors, for all operands of linear
    layers: along the sum, of 16 x 16 for weights. The law, and to round to nearest without Hadamard transforms, are
    Transformer Engine's (`nvfp4_4over6="all"` as its tests have it). The first and the last layer in bfloat16 (†).
    """
    tile, block = NVFP4(four_over_six="mae"), NVFP4({-2: 16, -1: 16}, four_over_six="mae")
    by_weight, along_rows = Product(tile, block), NVFP4({-2: 16}, four_over_six="mae")
    return Recipe(
        [
            Entry("*", "linear", _BF16, _BF16, _BF16, first=1, last=1),
            Entry("*", "linear", by_weight, by_weight, Product(along_rows, along_rows)),
        ]
    )


def _delayed() -> Recipe:
    """NVIDIA, Transformer Engine's documentation, "Common API": `recipe.DelayedScaling`, whose defaults these are.

    E4M3 for inputs and weights, E5M2 for gradients; a scale for each tensor, 448 or 57344 / the largest of the past
    1024 largest magnitudes / 2^margin, margin 0, unchanged where that is 0 or not finite (†); to nearest, saturating;
    sums in float32. Linear layers.
    """
    kept, gradient = (Operand(number, scale=Scale(history=1024)) for number in (_E4M3_SATURATING, _E5M2_SATURATING))
    backward = Product(gradient, kept)
    return Recipe([Entry("*", "linear", Product(kept, kept), backward, backward)])


def _wage() -> Recipe:
    """Wu et al., "Training and Inference with Integers in Deep Neural Networks", 2018, section 3.

    Inputs of 8 bits and weights of 2, clipped to +-(1 - 2^(1 - bits)); errors of 8 bits, divided by 2^round(log2 of the
    largest) and clipped alike; to nearest; integer sums are exact. The errors' power of two is multiplied back here;
    WAGE drops it, as its next division would. Layers' scales 2^k, the random rounding of updates and the weights' 8
    bits are the program's (examples.wage_torch).
    """
    weight, activation = (FixedPoint(bits, bits - 1, symmetric=True) for bits in (2, 8))
    error: Number = BlockScaled(activation, {...: None}, "round")
    return Recipe([Entry("*", None, Product(activation, weight), Product(error, weight), Product(error, activation))])


def _swalp() -> Recipe:
    """Yang et al., "SWALP: Stochastic Weight Averaging in Low-Precision Training", 2019, section 5.

    8-bit block floating point for all operands, rounded stochastically, a block for each example of inputs and
    gradients and for each output of a weight ("small" blocks); sums in float32. A tensor that stands in two products is
    rounded in each with words of its own: with the same expectation, independently, where SWALP rounds it once. The
    states of the optimizer, and the averages in float32, are the program's (examples.swalp_torch).
    """
    rounded: Any = Operand(BlockFloatingPoint(8, dim=0), "stochastic")
    return _alike(Product(rounded, rounded))


def _with_convolutions(recipe: Recipe) -> Recipe:
    """The recipe with the products of its linear layers in convolutions, too. This is ours: the papers have none.

    So `first` and `last` count both. Blocks and tiles are those of a linear layer at each position and tap, as in
    Microsoft's microxcaling (`qcore.linalg.convolution`).
    """
    return Recipe([replace(entry, layer_type=None) for entry in recipe.entries])


class _Recipes(dict[str, Recipe]):
    """Recipes by name; another name raises an error with the names."""

    def __missing__(self, name: object) -> Recipe:
        raise KeyError(f"{quoted(name)} is not a recipe; {_nearest(name)}allowed are {', '.join(self)}")


RECIPES: dict[str, Recipe] = _Recipes()
RECIPES |= {
    # Mishra et al., "Recipes for Pre-training LLMs with MXFP8", 2025, section 3 (†): E4M3 for all tensors, blocks of 32
    # along the axis that is summed over, scales 2^ceil(log2(amax / 448)), to nearest even, saturating, sums in float32.
    # Linear layers only; embedding, head, attention's products and softmax stay in bfloat16 (†).
    "mxfp8": Recipe(
        [
            Entry(
                layer_type="linear",
                forward=Product(_mxfp8(-1), _mxfp8(-1)),
                grad_input=Product(_mxfp8(-1), _mxfp8(-2)),
                grad_weight=Product(_mxfp8(-2), _mxfp8(-2)),
            )
        ]
    ),
    "deepseek_v3_fp8": _deepseek(),
    "nvfp4_pretraining": _nvfp4(),
    "nvfp4_four_over_six": _four_over_six(),
    "fp8_delayed": _delayed(),
    "fp8_chunked": _chunked(),
    # Sun et al., "Hybrid 8-bit Floating Point (HFP8) Training and Inference for Deep Neural Networks", 2019, section 3:
    # 1-4-3 for inputs and weights, 1-5-2 for gradients, to nearest (†); 1-6-9 sums in chunks of 64 (†). The first and
    # the last layer have 16 bits (†), here 1-6-9.
    "hfp8": Recipe(
        [
            Entry("*", None, _HALF, _HALF, _HALF, first=1, last=1),
            Entry(
                forward=Product(_E4M3_SUN, _E4M3_SUN, _CHUNKED),
                grad_input=Product(_E5M2, _E4M3_SUN, _CHUNKED),
                grad_weight=Product(_E5M2, _E4M3_SUN, _CHUNKED),
            ),
        ]
    ),
    "wage": _wage(),
    "swalp": _swalp(),
    # Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019, section 3 (†): bfloat16 operands, float32
    # sums and results.
    "bf16_mixed": _alike(_BF16),
}
RECIPES |= {
    f"{name}_conv": _with_convolutions(RECIPES[name])
    for name in ("mxfp8", "deepseek_v3_fp8", "nvfp4_pretraining", "nvfp4_four_over_six", "fp8_delayed")
}


def _nearest(name: object) -> str:
    """A question for messages about a name that is almost one of a recipe; else nothing."""
    near = get_close_matches(str(name).lower(), RECIPES, 1, 0.6)
    return f"did you mean {near[0]}? " if near else ""


NOTHING_TO_LOWER = 'nothing is lowered: there is no recipe, rule or format; a recipe is RECIPES["mxfp8"]'


def recipe_hint(value: Any) -> str:
    """The hint that a message about layer types has if the value looks like a recipe: its name, or an entry."""
    if isinstance(value, Entry):
        return "; entries are the argument of a Recipe"
    if not isinstance(value, str):
        return ""
    if value in RECIPES:
        return f'; the recipe is RECIPES["{value}"]'
    return f"; {_nearest(value)}names of RECIPES are {', '.join(RECIPES)}"


def recipe_of(layer_types: Any, recipe: Any, is_default: bool) -> Any:
    """The argument `layer_types` of `lower`, or `recipe`, which is another name of it; `is_default` if it was left out.

    Raises:
        ValueError: if both are given.
    """
    if recipe is None:
        return layer_types
    if not isinstance(recipe, Recipe):
        kind = type(recipe).__name__
        raise TypeError(f"recipe={quoted(recipe)} is a {kind}; allowed is a Recipe{recipe_hint(recipe)}")
    check_alone({"layer_types": not is_default})
    return recipe
