"""Recipes on a machine: lowered models run its instructions, with one result in torch and JAX; wrong machines raise."""

import jax
import numpy as np
import pytest
import torch
from support import assert_same_bits

import qcore
import qjax.recipes
import qtorch.recipes
from qcore import RECIPES, Accumulator, Entry, Operand, Product, Recipe, Scale

# A recipe, the machine, and the instructions of the forward product and of both gradients of its last entry
KNOWN = [
    ("bf16_mixed", "hopper", "hopper.wgmma.bf16", "hopper.wgmma.bf16"),
    ("bf16_mixed", "hopper.mma", "hopper.mma.bf16", "hopper.mma.bf16"),
    ("bf16_mixed", "cdna2", "cdna2.mfma.bf16_1k", "cdna2.mfma.bf16_1k"),
    ("fp8_delayed", "ada", "ada.mma.e4m3", "ada.mma.e4m3_e5m2"),
    ("fp8_delayed", "rtx_blackwell", "rtx_blackwell.mma.e4m3", "rtx_blackwell.mma.e4m3_e5m2"),
    ("deepseek_v3_fp8", "hopper", "hopper.wgmma.e4m3", "hopper.wgmma.e4m3"),
    ("mxfp8", "blackwell", "blackwell.tcgen05.mxe4m3", "blackwell.tcgen05.mxe4m3"),
    ("nvfp4_pretraining", "blackwell", "blackwell.tcgen05.nvf4", "blackwell.tcgen05.nvf4"),
]


@pytest.mark.parametrize(("name", "machine", "forward", "backward"), KNOWN)
def test_each_product_gets_the_instruction_for_its_operands(name, machine, forward, backward):
    entry = RECIPES[name].on(machine).entries[-1]
    found = [product.accumulator.instruction.name for product in (entry.forward, entry.grad_input, entry.grad_weight)]
    assert found == [forward, backward, backward]
    assert entry.forward.accumulator.chunk == (
        128 if name == "deepseek_v3_fp8" else entry.forward.accumulator.design.step
    )
    assert qcore.parse(RECIPES[name].on(machine).text) == RECIPES[name].on(machine)


def test_blocks_lie_along_the_terms_of_each_product():
    entry = RECIPES["mxfp8"].on("blackwell").entries[0]
    for product in (entry.forward, entry.grad_input, entry.grad_weight):
        assert {operand.number.text for operand in product.operands} == {"scaled(e4m3fn,{-1:32},rule=rceil)"}
        assert product.first.matrix
        assert product.second.matrix


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("bf16_mixed", "hopper"),
        ("deepseek_v3_fp8", "hopper"),
        ("mxfp8", "blackwell"),
        ("nvfp4_pretraining", "blackwell"),
    ],
)
def test_lowered_models(name, machine):
    """Three linear layers of one size, whose products are few programs: results and gradients in torch and JAX."""
    rng = np.random.default_rng(3)
    x, *weights = (rng.standard_normal(shape).astype(np.float32) for shape in [(64, 64)] * 4)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, len(w), bias=False) for w in weights))
    for layer, w in zip(model, weights, strict=True):
        layer.weight.data = torch.from_numpy(w.copy())
    recipe = Recipe(RECIPES[name].entries[-1:])  # float32 products of layers that stay in high precision differ
    if recipe.stochastic:  # one key for all products is not the same in both; each product is tested in test_designs
        low = qtorch.recipes.lower(model, recipe, on=machine)
        low(torch.from_numpy(x)).square().mean().backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())
        return
    given = torch.from_numpy(x).requires_grad_()
    y = qtorch.recipes.lower(model, recipe, on=machine)(given)
    of_torch = (y, *torch.autograd.grad(y.sum(), [given, *model.parameters()]))

    def forward(weights, x):
        for w in weights:
            x = x @ w.T
        return x

    low = qjax.recipes.lower(forward, recipe, on=machine)
    y, pull = jax.vjp(low, weights, x)
    of_weights, of_x = pull(np.ones_like(y))
    for found, expected in zip((y, of_x, *of_weights), of_torch, strict=True):
        assert_same_bits(found, expected)
    wide = forward(weights, x)
    assert 0 < np.abs(np.asarray(y) - wide).max() < 0.2 * np.abs(wide).max()


WRONG = [
    (
        "bf16_mixed",
        "h100",
        "on='h100'; allowed are names that `qbits designs` lists, of volta, turing, ampere",
    ),
    ("bf16_mixed", "hoper", "on='hoper'; near it are hopper"),
    (
        "bf16_mixed",
        "volta",
        "on='volta' has no instruction for bfloat16 and bfloat16; allowed are float16, in the pairs",
    ),
    (
        "mxfp8",
        "hopper",
        "on='hopper' has no instruction for scaled(e4m3fn,{-1:32},rule=rceil) and scaled(e4m3fn,{-1:32}",
    ),
    (
        "swalp",
        "blackwell",
        "on='blackwell' has no instruction for block(8,dim=0) and block(8,dim=0); allowed are float16",
    ),
    ("fp8_delayed", 3, "on=3 is a int; allowed is a chip such as hopper"),
]


@pytest.mark.parametrize(("name", "machine", "words"), WRONG, ids=[case[2] for case in WRONG])
def test_wrong_machines(name, machine, words):
    lowerings = (
        lambda: RECIPES[name].on(machine),
        lambda: qtorch.recipes.lower(torch.nn.Linear(2, 2), RECIPES[name], on=machine),
        lambda: qjax.recipes.lower(lambda x: x, RECIPES[name], on=machine),
    )
    for lower in lowerings:
        with pytest.raises((TypeError, ValueError)) as caught:
            lower()
        assert words in str(caught.value)


def test_machines_without_a_recipe():
    for lower in (lambda: qtorch.recipes.lower(torch.nn.Linear(2, 2), ["linear"], "e5m2", on="hopper"),):
        with pytest.raises(ValueError, match="on='hopper' without a Recipe; allowed is None"):
            lower()
    with pytest.raises(ValueError, match="on='hopper' without a Recipe; allowed is None"):
        qjax.recipes.lower(lambda x: x, forward_number="e5m2", on="hopper")


def test_what_has_no_instruction_names_its_entry():
    recipe = Recipe([Entry("head"), Entry("body", forward=Product("e4m3fn", None))])
    with pytest.raises(ValueError, match=r"for e4m3fn and binary\(8,23\); .*the products are those of entry\('body'"):
        recipe.on("hopper")
    assert Recipe([Entry("head")]).on("hopper") == Recipe([Entry("head")])


def test_products():
    tile = Operand("e4m3fn", scale=Scale(1, 128))
    assert Product(tile, tile, Accumulator(chunk=128)).on("hopper").accumulator.inner.design.name == "hopper.wgmma.e4m3"
    with pytest.raises(
        ValueError, match=r"first has scale\(outer=1,terms=128\) with hopper.wgmma.e4m3; allowed are al"
    ):
        Product(tile, tile, Accumulator("float16", 32)).on("hopper")
    assert Product(None, None).on("cdna1").accumulator.text == "accumulator(design=cdna1.mfma.f32)"
