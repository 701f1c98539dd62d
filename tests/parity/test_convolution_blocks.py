"""Blocks and tiles in convolutions: an oracle in plain Python, all packages, all layouts, groups and sizes."""

from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from support import assert_same_bits

import qjax
import qtorch
from qcore import RECIPES, Accumulator, BlockScaled, Operand, Product, Scale
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.convolution import convolution_geometry
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry

E4M3 = "binary(4,3,specials=fn,overflow=saturate)"
SIZES = {  # the shapes of x and w; stride, padding, dilation, groups
    "plain": ((3, 5, 4, 3), (6, 5, 2, 3), (1, 1), (0, 1), (1, 1), 1),
    "groups": ((2, 12, 5, 4), (4, 6, 3, 2), (2, 1), (1, 0), (1, 1), 2),
    "depthwise": ((5, 3, 5, 6), (6, 1, 2, 2), (1, 2), (1, 1), (2, 1), 3),
    "one dimension": ((2, 6, 7), (5, 6, 3), (2,), (2,), (1,), 1),
    "three dimensions": ((2, 5, 2, 3, 2), (3, 5, 1, 2, 2), (1, 1, 1), (0, 1, 0), (1, 1, 1), 1),
}


def mx(axis):
    """Blocks of 4 E4M3 numbers along an axis of a linear layer's operand, with scales that are rounded up."""
    return BlockScaled("e4m3fn", {axis: 4}, "rceil")


BLOCKS = Product(mx(-1), mx(-1)), Product(mx(-1), mx(-2)), Product(mx(-2), mx(-2))
TILE, SQUARE = Operand(E4M3, scale=Scale(1, 4)), Operand(E4M3, scale=Scale(4, 4))
PROMOTED = Accumulator(chunk=2)
TILES = Product(TILE, SQUARE, PROMOTED), Product(TILE, SQUARE, PROMOTED), Product(TILE, TILE, PROMOTED)


def e4m3(x):
    return x.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def blocks(row):
    """A row of numbers in blocks of 4 with the least power of two that lets no element exceed 448."""
    found = []
    for begin in range(0, len(row), 4):
        part = np.float64(row[begin : begin + 4])
        most = np.abs(part).max()
        k = -127
        while most > 448 * 2.0**k:
            k += 1
        found += (e4m3(part / 2.0**k) * 2.0**k).tolist()
    return found


def tiles(matrix, height):
    """A matrix's numbers times their tile's scale, as E4M3; and r for each number."""
    found, r = np.zeros(matrix.shape), np.zeros(matrix.shape, np.float32)
    for top, left in product(range(0, matrix.shape[0], height), range(0, matrix.shape[1], 4)):
        place = slice(top, top + height), slice(left, left + 4)
        most = np.float64(np.abs(matrix[place]).max())
        s = np.float32(448 / most) if most else np.float32(1)
        found[place] = np.clip(e4m3(np.float32(matrix[place] * np.float64(s))), -448, 448)
        r[place] = np.float32(1 / np.float64(s))
    return found, r


def fold_blocks(terms):
    """(channel or example, place, a, b, ...) in order of the contraction index: one float64 sum."""
    total = 0.0
    for *_, a, b, _, _ in sorted(terms, key=lambda term: term[:2]):
        total += a * b
    return np.float32(total)


def fold_tiles(terms):
    """By place, then by channel or example: chunks of two within a place, each times both scales."""
    total = np.float32(0)
    for place in sorted({term[1] for term in terms}):
        own = sorted(term for term in terms if term[1] == place)
        for begin in range(0, len(own), 2):
            chunk = own[begin : begin + 2]
            found = np.float32(sum(term[2] * term[3] for term in chunk))
            factor = np.float32(np.float64(chunk[0][4]) * np.float64(chunk[0][5]))
            total = np.float32(np.float64(total) + np.float64(np.float32(np.float64(found) * np.float64(factor))))
    return total


def rounded(x, axis, is_weight, groups, kind, height=1):
    """An operand rounded along axis 1 or 0 of each place and group; and r of its tiles."""
    size = x.shape[0] if is_weight else x.shape[1]
    found, r = np.zeros(x.shape), np.ones(x.shape, np.float32)
    for group, place in product(range(groups), np.ndindex(*x.shape[2:])):
        own = slice(group * size // groups, (group + 1) * size // groups)
        matrix = x[(own, slice(None), *place)] if is_weight else x[(slice(None), own, *place)]
        matrix = matrix if axis == 1 else matrix.T
        of_matrix = (
            [tiles(matrix, height)] if kind == "tiles" else [([blocks(row) for row in matrix], np.ones(matrix.shape))]
        )
        y, of_r = (np.array(one) if axis == 1 else np.array(one).T for one in of_matrix[0])
        where = (own, slice(None), *place) if is_weight else (slice(None), own, *place)
        found[where], r[where] = y, of_r
    return found, r


@cache
def expected(name, kind):
    """The inputs, and the result and both gradients by loops over all pairs of numbers that meet."""
    shape_x, shape_w, stride, padding, dilation, groups = SIZES[name]
    rng = np.random.default_rng(len(name))
    geometry = convolution_geometry(len(stride), stride, padding, dilation, groups)
    shapes = shape_x, shape_w, geometry.result(shape_x, shape_w)
    x, w, g = (np.float32(rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)) for shape in shapes)
    high = 4 if kind == "tiles" else 1
    fold = fold_tiles if kind == "tiles" else fold_blocks
    along = lambda one, axis, is_weight=False: rounded(one, axis, is_weight, groups, kind, high if is_weight else 1)  # noqa: E731
    pairs = (along(x, 1), along(w, 1, True)), (along(g, 1), along(w, 0, True)), (along(g, 0), along(x, 0))
    terms = [{place: [] for place in np.ndindex(*shape)} for shape in (shapes[2], shape_x, shape_w)]
    outputs, channels = shape_w[0] // groups, shape_w[1]
    for n, o, *position in np.ndindex(*shapes[2]):
        for c, *tap in np.ndindex(channels, *shape_w[2:]):
            steps = zip(position, stride, padding, tap, dilation, strict=True)
            pixel = [at * step - pad + one * gap for at, step, pad, one, gap in steps]
            if any(not 0 <= at < size for at, size in zip(pixel, shape_x[2:], strict=True)):
                continue
            at_y, at_w, at_x = (n, o, *position), (o, c, *tap), (n, o // outputs * channels + c, *pixel)
            for which, (place, inner, outer, first, second) in enumerate(
                ((at_y, c, tap, at_x, at_w), (at_x, o, tap, at_y, at_w), (at_w, n, position, at_y, at_x))
            ):
                (a, ra), (b, rb) = pairs[which]
                inner = inner % outputs if which == 1 else inner
                terms[which][place].append((inner, tuple(outer), a[first], b[second], ra[first], rb[second]))
    results = [
        np.array([fold(own) for own in one.values()], np.float32).reshape(shape)
        for one, shape in zip(terms, (shapes[2], shape_x, shape_w), strict=True)
    ]
    return geometry, (x, w, g), results


CASES = {"blocks": BLOCKS, "tiles": TILES}


def options_of(name, kind):
    _, _, stride, padding, dilation, groups = SIZES[name]
    forward, grad_input, grad_weight = CASES[kind]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    options |= {"operands": forward.operands, "accumulator": forward.accumulator}
    return options | {"grad_input": grad_input, "grad_weight": grad_weight}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("name", SIZES)
def test_the_oracles_bits(name, kind):
    geometry, (x, w, g), results = expected(name, kind)
    forward, grad_input, grad_weight = CASES[kind]
    found = [
        multiply_arrays(geometry, FORWARD, forward, x, w, w.shape, None),
        multiply_arrays(geometry, GRAD_A, grad_input, g, w, x.shape, None),
        multiply_arrays(geometry, GRAD_B, grad_weight, g, x, w.shape, None),
    ]
    function = getattr(qtorch.linalg, f"conv{x.ndim - 2}d")
    for memory in (torch.contiguous_format, torch.channels_last)[: 1 + (x.ndim == 4)]:
        tensors = [torch.from_numpy(one.copy()).to(memory_format=memory).requires_grad_() for one in (x, w)]
        y = function(*tensors, **options_of(name, kind))
        of_torch = y, *torch.autograd.grad(y, tensors, torch.from_numpy(g).to(memory_format=memory))
        for which, one, other, result in zip((FORWARD, GRAD_A, GRAD_B), found, of_torch, results, strict=True):
            assert_same_bits(one.reshape(result.shape), result, f"{which}, NumPy")
            assert_same_bits(other, result, f"{which}, torch")


LAYOUTS = {  # of x, w and the result: the axes of the named layout in those of (batch, channels, height, width)
    "NCHW": (("NCHW", "OIHW", "NCHW"), (0, 1, 2, 3), (0, 1, 2, 3)),
    "NHWC": (("NHWC", "HWIO", "NHWC"), (0, 2, 3, 1), (2, 3, 1, 0)),
    "CHNW": (("CHNW", "HIOW", "CHNW"), (1, 2, 0, 3), (2, 1, 0, 3)),
}


def in_jax(name, kind, layout):
    """The result and both gradients by a lowered `conv_general_dilated`, back in torch's layout."""
    _, (x, w, g), _ = expected(name, kind)
    _, _, stride, padding, dilation, groups = SIZES[name]
    numbers, of_x, of_w = LAYOUTS[layout]
    forward, grad_input, grad_weight = CASES[kind]
    entry = qjax.Entry("*", "conv", forward, grad_input, grad_weight)
    edges = [(size, size) for size in padding]
    lowered = qjax.recipes.lower(
        lambda w, x: jax.lax.conv_general_dilated(
            x, w["w"], stride, edges, None, dilation, numbers, feature_group_count=groups
        ),
        qjax.Recipe([entry]),
    )

    def three(w, x, g):
        y, pull = jax.vjp(lambda w, x: lowered({"w": w}, x), w, x)
        return y, *pull(g)

    given = (jnp.transpose(one, axes) for one, axes in ((w, of_w), (x, of_x), (g, of_x)))
    y, of_weight, of_input = jax.jit(three)(*given)
    pairs = (y, of_x), (of_input, of_x), (of_weight, of_w)
    return [np.transpose(one, np.argsort(axes)) for one, axes in pairs]


USUAL = {("groups", "blocks", "NHWC")}


@pytest.mark.parametrize(
    ("name", "kind", "layout"),
    [
        pytest.param(*case, marks=[] if case in USUAL else pytest.mark.heavy)
        for case in product(("plain", "groups", "depthwise"), CASES, LAYOUTS)
    ],
)
def test_jax_in_all_layouts(name, kind, layout):
    for which, one, result in zip(
        (FORWARD, GRAD_A, GRAD_B), in_jax(name, kind, layout), expected(name, kind)[2], strict=True
    ):
        assert_same_bits(one, result, which)


def test_a_convolution_of_one_tap_and_position_is_a_linear_layer():
    """Also with transforms and random words, which the recipe for NVFP4 has: the same words, in all three products."""
    entry, rng = RECIPES["nvfp4_pretraining_conv"].entries[-1], np.random.default_rng(3)
    x, w, g = (np.float32(rng.standard_normal(shape)) for shape in ((9, 21), (17, 21), (9, 17)))
    one, linear = convolution_geometry(2, 1, 0, 1, 1), MatrixGeometry(transposed=True)
    calls = (
        (FORWARD, entry.forward, x, w, w),
        (GRAD_A, entry.grad_input, g, w, x),
        (GRAD_B, entry.grad_weight, g, x, w),
    )
    for which, how, first, second, other in calls:
        expected = multiply_arrays(linear, which, how, first, second, other.shape, 7)
        corners = [x[:, :, None, None] for x in (first, second, other)]
        found = multiply_arrays(one, which, how, *corners[:2], corners[2].shape, 7)
        assert_same_bits(found.reshape(-1), expected.reshape(-1), which)


def by_keys(room, array, name, key):
    """The result and the gradients of a convolution with the products of NVFP4, with transforms and a key."""
    _, _, stride, padding, dilation, groups = SIZES[name]
    entry, (_, inputs, _) = RECIPES["nvfp4_pretraining_conv"].entries[-1], expected(name, "blocks")
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "key": key}
    options |= {"operands": entry.forward.operands, "grad_input": entry.grad_input, "grad_weight": entry.grad_weight}
    return partial(room.conv2d, **options), map(array, inputs)


@pytest.mark.parametrize("name", ["groups", pytest.param("depthwise", marks=pytest.mark.heavy)])
def test_nvfp4_with_transforms_and_keys(name):
    geometry, (x, w, g), _ = expected(name, "blocks")
    entry = RECIPES["nvfp4_pretraining_conv"].entries[-1]
    reference = [
        multiply_arrays(geometry, FORWARD, entry.forward, x, w, w.shape, 7),
        multiply_arrays(geometry, GRAD_A, entry.grad_input, g, w, x.shape, 7),
        multiply_arrays(geometry, GRAD_B, entry.grad_weight, g, x, w.shape, 7),
    ]
    function, given = by_keys(qtorch.linalg, torch.from_numpy, name, 7)
    x, w, g = given
    y = function(x.requires_grad_(), w.requires_grad_())
    for one, other in zip((y, *torch.autograd.grad(y, (x, w), g)), reference, strict=True):
        assert_same_bits(one.detach().numpy().reshape(-1), other.reshape(-1))


@pytest.mark.heavy
def test_nvfp4_with_transforms_and_keys_in_jax():
    function, given = by_keys(qjax.linalg, jnp.asarray, "groups", 7)

    def three(x, w, g):
        y, pull = jax.vjp(function, x, w)
        return y, *pull(g)

    of_torch, tensors = by_keys(qtorch.linalg, torch.from_numpy, "groups", 7)
    x, w, g = tensors
    y = of_torch(x.requires_grad_(), w.requires_grad_())
    found = jax.jit(three)(*given)
    for one, other in zip(found, (y, *torch.autograd.grad(y, (x, w), g)), strict=True):
        assert_same_bits(one, other)


def test_other_axes_from_the_end_are_refused():
    """They would have to be positions; and -3 of images was the channels."""
    number, (x, w, _) = BlockScaled("e4m3fn", {-3: 4}), expected("plain", "blocks")[1]
    for room, array in ((qtorch.linalg, torch.from_numpy), (qjax.linalg, jnp.asarray)):
        with pytest.raises(
            ValueError, match=r"block=\{-3: 4\} in a convolution; allowed are -1, the channels of a group"
        ):
            room.conv2d(array(x), array(w), operands=(number, None))


def test_axes_from_the_start_are_those_of_the_tensor():
    x, w = (torch.from_numpy(one) for one in expected("plain", "blocks")[1][:2])
    number = BlockScaled("e4m3fn", {3: 4})
    found = qtorch.linalg.conv2d(x, w, operands=(number, number))
    rounded = (qtorch.quantize(one, BlockScaled("e4m3fn", {-1: 4})) for one in (x, w))
    assert_same_bits(found, qtorch.linalg.conv2d(*rounded))
