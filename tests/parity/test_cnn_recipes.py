"""A convolutional network with a residual connection under all recipes: shares, warnings, bits of both frameworks."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from covering import usually
from flax import linen, nnx
from flax_support import layer_of
from support import assert_same_bits
from torch import nn

import qjax
import qtorch
from qcore import RECIPES, Entry, Product, Recipe

# The weights in the order of the program, and the multiply-adds of two images of 8 x 8, counted by hand: results times
# the numbers of a weight for each result.
WEIGHTS = {
    "enter": (8, 3, 3, 3),
    "first": (8, 8, 3, 3),
    "second": (8, 4, 3, 3),
    "down": (16, 8, 1, 1),
    "depthwise": (16, 1, 3, 3),
    "head": (10, 256),
}
WORK = {
    "enter": 2 * 8 * 64 * 27,
    "first": 2 * 8 * 64 * 72,
    "second": 2 * 8 * 64 * 36,
    "down": 2 * 16 * 16 * 8,
    "depthwise": 2 * 16 * 16 * 9,
    "head": 2 * 10 * 256,
}
TOTAL = sum(WORK.values())
HEAD, ENDS = WORK["head"] / TOTAL, (WORK["enter"] + WORK["head"]) / TOTAL
SHARES = {  # lowered below 16 bits, and in 16 bits
    "mxfp8": (HEAD, 0),
    "deepseek_v3_fp8": (0, 0),
    "nvfp4_pretraining": (0, HEAD),
    "nvfp4_four_over_six": (0, HEAD),
    "fp8_delayed": (HEAD, 0),
    "fp8_chunked": (1 - HEAD, HEAD),
    "hfp8": (1 - ENDS, ENDS),
    "wage": (1, 0),
    "swalp": (1, 0),
    "bf16_mixed": (0, 1),
    "mxfp8_conv": (1, 0),
    "deepseek_v3_fp8_conv": (1 - HEAD, 0),
    "nvfp4_pretraining_conv": (1 - ENDS, ENDS),
    "nvfp4_four_over_six_conv": (1 - ENDS, ENDS),
    "fp8_delayed_conv": (1, 0),
}
X = np.float32(np.random.default_rng(0).standard_normal((2, 3, 8, 8)))
SETTINGS = {"second": (1, 1, 2), "down": (2, 0, 1), "depthwise": (1, 1, 16)}  # stride, padding, groups


def weights():
    rng = np.random.default_rng(1)
    return {name: np.float32(rng.standard_normal(shape) / 4) for name, shape in WEIGHTS.items()}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for name, (outputs, inputs, *taps) in WEIGHTS.items():
            stride, padding, groups = SETTINGS.get(name, (1, 1, 1))
            layer = nn.Conv2d(inputs * groups, outputs, taps or 1, stride, padding, groups=groups, bias=False)
            self.add_module(name, layer if taps else nn.Linear(inputs, outputs, bias=False))
        self.load_state_dict({f"{name}.weight": torch.from_numpy(one) for name, one in weights().items()})

    def forward(self, x):
        x = F.relu(self.enter(x))
        x = x + self.second(F.relu(self.first(x)))
        return self.head(F.relu(self.depthwise(self.down(x))).flatten(1))


def net(weights, x, layout="NCHW"):
    """The same in JAX, on images of a layout; x and the weights are torch's."""
    of_x, of_w = ((0, 1, 2, 3), (0, 1, 2, 3)) if layout == "NCHW" else ((0, 2, 3, 1), (2, 3, 1, 0))
    numbers = (layout, "OIHW" if layout == "NCHW" else "HWIO", layout)

    def conv(x, name):
        stride, padding, groups = SETTINGS.get(name, (1, 1, 1))
        edges, weight = [(padding, padding)] * 2, jnp.transpose(weights[name], of_w)
        return jax.lax.conv_general_dilated(
            x, weight, (stride,) * 2, edges, dimension_numbers=numbers, feature_group_count=groups
        )

    x = jax.nn.relu(conv(jnp.transpose(x, of_x), "enter"))
    x = x + conv(jax.nn.relu(conv(x, "first")), "second")
    x = jnp.transpose(jax.nn.relu(conv(conv(x, "down"), "depthwise")), np.argsort(of_x))
    return x.reshape(len(x), -1) @ weights["head"].T


@pytest.mark.parametrize("name", usually(RECIPES.keys() - {"nvfp4_pretraining_conv", "mxfp8"}, RECIPES))
def test_shares_are_those_counted_by_hand(name):
    found = qtorch.recipes.report(qtorch.recipes.lower(Net(), RECIPES[name]), torch.from_numpy(X))
    of_jax = qjax.recipes.report(qjax.recipes.lower(net, RECIPES[name]), weights(), X)
    for run in (found, of_jax):
        assert [row.multiply_adds for row in run] == list(WORK.values())
        assert (run.lowered, run.in_16_bits) == pytest.approx(SHARES[name])
    for one, other in zip(found, of_jax, strict=True):
        assert (one.kind, one.share, one.products) == (other.kind, other.share, other.products)
        assert one.reason == other.reason


WARNED = [name for name, (low, _) in SHARES.items() if low < 0.5 and name != "bf16_mixed"]


@pytest.mark.parametrize("name", WARNED)
def test_a_recipe_for_linear_layers_names_that_for_convolutions_once(name):
    text = rf"{SHARES[name][0]:.1%} of the .*; {1 - HEAD:.1%} are conv products: RECIPES\[\"{name}_conv\"\] lowers them"
    model, lowered = qtorch.recipes.lower(Net(), RECIPES[name]), qjax.recipes.lower(net, RECIPES[name])
    options = {"key": 1} if RECIPES[name].stochastic else {}
    if RECIPES[name].delayed:
        options["scaling"] = qjax.recipes.first_scaling(lowered, weights(), X)
    calls = (
        lambda: model(torch.from_numpy(X)),
        lambda: jax.eval_shape(lambda w, x: lowered(w, x, **options), weights(), X),
    )
    for call in calls:
        with pytest.warns(UserWarning, match=text) as caught:
            call()
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call()


OTHERS = sorted({*SHARES} - {*WARNED})


@pytest.mark.parametrize("name", usually([one for one in OTHERS if one != "nvfp4_pretraining_conv"], OTHERS))
def test_other_recipes_do_not_warn(name):
    lowered, options = qjax.recipes.lower(net, RECIPES[name]), {"key": 1} if RECIPES[name].stochastic else {}
    if RECIPES[name].delayed:
        options["scaling"] = qjax.recipes.first_scaling(lowered, weights(), X)
    jax.eval_shape(lambda w, x: lowered(w, x, **options), weights(), X)
    qtorch.recipes.lower(Net(), RECIPES[name])(torch.from_numpy(X))


def test_a_recipe_of_ones_own_is_told_what_is_missing():
    eight = Product("e4m3fn", "e4m3fn")
    recipe = Recipe([Entry("enter", forward=eight), Entry("down"), Entry("*", "linear", eight)])
    text = (
        r"lowers 21.5% .*; 78.5% are conv products: Entry\(layer_type=\"conv\", forward=Product\(...\)\) in the recipe"
    )
    with pytest.warns(UserWarning, match=text) as caught:
        qtorch.recipes.lower(Net(), recipe)(torch.from_numpy(X))
    assert len(caught) == 1


def in_all_layers(name):
    """A recipe without the entry that leaves the head in float32, whose sums are each framework's own."""
    return Recipe([entry for entry in RECIPES[name].entries if entry.products is not None])


def by_torch(name, memory=torch.contiguous_format, compiled=False):
    model = qtorch.recipes.lower(Net(), in_all_layers(name)).to(memory_format=memory)
    x = torch.from_numpy(X).to(memory_format=memory).requires_grad_()
    y = (torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model)(x)
    return y, *torch.autograd.grad(y.square().sum(), (x, *model.parameters()))


def by_jax(name, layout):
    lowered = qjax.recipes.lower(lambda w, x: net(w, x, layout), in_all_layers(name))
    if RECIPES[name].delayed:
        lowered = partial(lowered, scaling=qjax.recipes.first_scaling(lowered, weights(), X))

    def three(w, x):
        y, pull = jax.vjp(lowered, w, x)
        of_w, of_x = pull(2 * y)
        return y, of_x, *(of_w[name] for name in WEIGHTS)

    return jax.jit(three)(weights(), X)


def test_memory_formats_have_the_same_bits_in_torch():
    for one, other in zip(by_torch("mxfp8_conv", torch.channels_last), by_torch("mxfp8_conv"), strict=True):
        assert_same_bits(one, other)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith("_conv") and not RECIPES[name].stochastic])
def test_compiled_programs_have_the_same_bits(name):
    torch._dynamo.reset()
    for one, other in zip(by_torch(name, compiled=True), by_torch(name), strict=True):
        assert_same_bits(one, other)


# XLA compiles minutes for NVFP4: one layout of each is enough, for the product of a layout is another's transposed.
LAYOUTS = {name: "NHWC" for name, one in RECIPES.items() if name.endswith("_conv") and not one.stochastic}
LAYOUTS |= {"mxfp8_conv": "NCHW"}


@pytest.mark.heavy
@pytest.mark.parametrize("name", LAYOUTS)
def test_both_frameworks_have_the_same_bits(name):
    for one, other in zip(by_jax(name, LAYOUTS[name]), by_torch(name), strict=True):
        assert_same_bits(one, other)


def flax_layer(kind, name, *shape, **options):
    """A layer of flax as a function of its kernel and images of NHWC, and its kernel."""
    kernel = np.float32(np.random.default_rng(2).standard_normal(shape))
    inputs, outputs = shape[2] * options.get("feature_group_count", 1), shape[3]
    if kind == "nnx":
        layer = layer_of(getattr(nnx, name), inputs, outputs, shape[:2], use_bias=False, **options)
        graph, state = nnx.split(layer)

        def call(w, x):
            return nnx.merge(graph, jax.tree.map(lambda _: w["kernel"], state))(x)

        return call, kernel
    layer = getattr(linen, name)(outputs, shape[:2], use_bias=False, **options)
    return lambda w, x: layer.apply({"params": w}, x), kernel


FLAX = {
    "nnx.Conv": ("nnx", "Conv", 3, 3, 3, 8, {"strides": 2, "feature_group_count": 2}),
    "linen.Conv": ("linen", "Conv", 3, 3, 6, 8, {"kernel_dilation": 2, "padding": "VALID"}),
    "nnx.ConvTranspose": ("nnx", "ConvTranspose", 3, 3, 6, 8, {"strides": (2, 2), "padding": "VALID"}),
}


def in_flax(name):
    """The result and both gradients of a layer under `mxfp8_conv`, in torch's layouts."""
    *arguments, options = FLAX[name]
    call, kernel = flax_layer(*arguments, **options)
    x = np.float32(np.random.default_rng(3).standard_normal((2, 6, 6, 6)))
    lowered = qjax.recipes.lower(call, RECIPES["mxfp8_conv"])

    def three(w, x):
        y, pull = jax.vjp(lambda w, x: lowered({"kernel": w}, x), w, x)
        return y, *pull(2 * y)

    y, of_w, of_x = jax.jit(three)(kernel, x)
    return kernel, x, [np.moveaxis(y, -1, 1), np.moveaxis(of_x, -1, 1), np.transpose(of_w, (3, 2, 0, 1))]


@pytest.mark.heavy
@pytest.mark.parametrize("name", FLAX)
def test_layers_of_flax_have_torchs_bits(name):
    kernel, x, found = in_flax(name)
    x = torch.from_numpy(np.moveaxis(x, -1, 1).copy()).requires_grad_()
    weight = torch.from_numpy(np.transpose(kernel, (3, 2, 0, 1)).copy())
    if name == "nnx.ConvTranspose":  # flax does not mirror the kernel, as torch does
        layer = nn.ConvTranspose2d(6, 8, 3, 2, bias=False)
        weight = weight.flip(2, 3).transpose(0, 1).contiguous()
    elif name == "nnx.Conv":
        layer = nn.Conv2d(6, 8, 3, 2, groups=2, bias=False)
    else:
        layer = nn.Conv2d(6, 8, 3, dilation=2, bias=False)
    layer.weight.data = weight
    model = qtorch.recipes.lower(nn.Sequential(layer), RECIPES["mxfp8_conv"])
    y = model(F.pad(x, (0, 1, 0, 1)) if name == "nnx.Conv" else x)
    of_x, of_w = torch.autograd.grad(y.square().sum(), (x, layer.weight))
    of_w = of_w.transpose(0, 1).flip(2, 3) if name == "nnx.ConvTranspose" else of_w
    for one, other in zip(found, (y, of_x, of_w), strict=True):
        assert_same_bits(one, other)
