"""quantize_model in PyTorch and in JAX: the same layers are quantized to the same bits."""

import io

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
import torch
from carrying_support import channels_last, same_at_every_layer, tensors_of
from flax import nnx
from flax_support import layer_of, module_of
from front_pairs import IMAGES, FlaxConvs, FlaxGPT2, TorchGPT2, torch_convs
from module_packages import Flax, Torch
from support import assert_same_bits

import qcore.exchange
import qjax.export
import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.export
import qtorch.quantization as tq
from qcore import BlockScaled
from qtorch.nn import quantized as tq_layers

pytestmark = pytest.mark.filterwarnings("ignore:.*seen nothing")


def states(report):
    """The states of layers by name."""
    return {row.path: (row.state, row.weight) for row in report}


def pair(make):
    """A network in PyTorch, and with its weights in flax."""
    torch.manual_seed(0)
    model = make(Torch)().eval()
    return model, qnn.from_torch(module_of(make(Flax)), tensors_of(model))


WAYS = {"calibrated": "default_qconfig", "histograms": None, "trained": "default_qat_qconfig"}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.heavy) for way in ("calibrated", "histograms", "trained")]
)
def test_convolutions(way):
    """Blocks of MobileNetV2, GoogLeNet, ShuffleNet and U-Net: JAX finds PyTorch's layers, stubs and scales, and has its
    integers after each layer."""
    settings, floats = WAYS[way], torch_convs()
    ours, theirs = (None if settings is None else getattr(package, settings) for package in (tq, jq))
    own = qnn.from_torch(module_of(FlaxConvs), tensors_of(floats))
    if way == "trained":
        small = tq.quantize_model(floats, ours, train=lambda model: Torch.step(model, Torch.images(IMAGES)))
        own = qnn.quantize_model(own, theirs, train=lambda model: Flax.step(model, Flax.images(IMAGES)))
    else:
        small = tq.quantize_model(floats, ours, [torch.from_numpy(IMAGES)])
        own = qnn.quantize_model(own, theirs, [channels_last(IMAGES)])
    assert states(tq.report(small)) == states(qnn.report(own))
    arrays, expected = qnn.to_torch(own), tensors_of(small)
    assert arrays.keys() == expected.keys()
    if way == "calibrated":  # sums of floats differ in their last bits
        for name in arrays:
            if name.endswith("scale"):
                np.testing.assert_allclose(arrays[name].ravel(), expected[name].ravel(), 1e-4)
    same_at_every_layer(small, qnn.from_torch(own, expected), IMAGES[::-1].copy())


def gpt2():
    """The block in PyTorch, and with its weights in flax."""
    torch.manual_seed(0)
    model = TorchGPT2().eval()
    arrays = {name: array.T.copy() if array.ndim == 2 else array for name, array in tensors_of(model).items()}
    return model, qnn.from_torch(module_of(FlaxGPT2), arrays)


TOKENS = np.random.default_rng(2).normal(size=(2, 3, 8)).astype(np.float32)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "settings",
    [
        lambda package: package.default_dynamic_qconfig,
        lambda package: package.QConfig(None, package.default_per_channel_weight_observer),
        lambda package: package.QConfig(None, BlockScaled("int4", {-1: 4}, scale="float32")),
        lambda package: {"": package.default_dynamic_qconfig, "proj": None, "fc": package.QConfig(None, "mxfp4")},
    ],
    ids=["dynamic", "int8 weights", "int4 weights", "parts"],
)
def test_linear_layers(settings):
    """A block of GPT-2 without data: the same arrays, and where sums are of integers the same result."""
    model, own = gpt2()
    small, served = tq.quantize_model(model, settings(tq)), qnn.quantize_model(own, settings(jq))
    arrays, expected = qnn.to_torch(served), tensors_of(small)
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert array.reshape(-1).tobytes() == expected[name].reshape(-1).tobytes(), name
    assert states(tq.report(small)) == states(qnn.report(served))
    x = torch.from_numpy(TOKENS)
    y, expected = nnx.jit(lambda model, x: model(x))(served, TOKENS), small(x)
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-5, atol=1e-5)
    if settings(tq) is tq.default_dynamic_qconfig:
        assert_same_bits(np.asarray(y), expected)


@pytest.mark.heavy
def test_activations_have_all_256_integers():
    """Ends of the range that calibration saw are 0 and 255 by default, and 0 and 127 with torch's default by name."""
    x = np.float32([[-1, 0.5], [0.25, 3]])
    layers = torch.nn.Sequential(torch.nn.Linear(2, 3)).eval(), nnx.Sequential(layer_of(nnx.Linear, 2, 3))
    for settings, last in ((), 255), (("x86",), 127):
        for package, quantize_model, model, batch in (
            (tq, tq.quantize_model, layers[0], torch.from_numpy(x)),
            (jq, qnn.quantize_model, layers[1], x),
        ):
            chosen = [package.get_default_qconfig(name) for name in settings]
            small = quantize_model(model, *chosen, calibrate=[batch])
            quant = small[0].quant if package is tq else small.layers[0].quant
            values = np.asarray(quant(batch).values)
            assert (values.min(), values.max()) == (0, last)


@pytest.mark.heavy
def test_a_range_for_each_row():
    """Dynamic results of a row do not depend on the other rows, and a NaN stays in its row; in files, too."""
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(70, 33), torch.nn.Linear(33, 5)).eval()
    x = torch.randn(30, 70, generator=generator) * torch.logspace(-30, 3, 30)[:, None]
    x[3], x[4], x[5, 5], x[6] = 0, -2, torch.nan, 3
    layers = [layer_of(nnx.Linear, 70, 33), layer_of(nnx.Linear, 33, 5)]
    own = qnn.from_torch(nnx.Sequential(*layers), tensors_of(model))
    small, served = (
        quantize_model(one, package.per_channel_dynamic_qconfig)
        for quantize_model, package, one in ((tq.quantize_model, tq, model), (qnn.quantize_model, jq, own))
    )
    y = small(x)
    assert torch.equal(y.isnan().any(1), torch.arange(30) == 5)
    assert_same_bits(torch.cat([small(row) for row in x.split(1)]), y)
    stacked = nnx.jit(lambda model, x: model(x))(served, x.numpy().reshape(3, 10, 70))
    assert_same_bits(np.asarray(stacked), y.reshape(3, 10, 5))
    arrays = tensors_of(small)
    assert qnn.to_torch(served).keys() == arrays.keys()
    assert_same_bits(tq.load_converted(model, small.state_dict())(x), y)
    assert_same_bits(np.asarray(qnn.from_torch(own, arrays)(x.numpy())), y)
    # one row in whole numbers, and torch's range by name, as quantize_dynamic has it
    row, first = x[20].double(), small[0]
    scale = (row.max() - row.min()) / 255
    q = (row / scale).round() + (-row.min() / scale).round()
    sums = (q - (-row.min() / scale).round()) @ first.weight().int_repr().double().t()
    expected = sums * scale * first.weight().q_per_channel_scales() + first.bias
    assert torch.allclose(first(x[20:21])[0].double(), expected, rtol=1e-5, atol=float(expected.abs().max()) * 1e-6)
    named = tq.QConfigDynamic(activation=tq.default_observer, weight=tq.default_per_channel_weight_observer)
    finite = x[6:]
    theirs = tq.quantize_dynamic(model, {"": tq.per_channel_dynamic_qconfig})(finite)
    assert_same_bits(tq.quantize_model(model, named)(finite), theirs)


@pytest.mark.heavy
@pytest.mark.parametrize("exact", [True, False])
def test_files_of_ranges_for_each_row(exact):
    model = torch.nn.Sequential(torch.nn.Linear(6, 3)).eval()
    own = qnn.from_torch(nnx.Sequential(layer_of(nnx.Linear, 6, 3)), tensors_of(model))
    small, served = (
        quantize_model(one, package.default_dynamic_qconfig)
        for quantize_model, package, one in ((tq.quantize_model, tq, model), (qnn.quantize_model, jq, own))
    )
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))
    x[0, 0] *= 100
    writers = (qtorch.export.to_onnx, small, x), (qjax.export.to_onnx, served, x.numpy())
    for to_onnx, model, batch in writers:
        to_onnx(model, (batch,), file := io.BytesIO(), exact=exact)
        name = onnx.load_from_string(file.getvalue()).graph.input[0].name
        (y,) = qcore.exchange.run_onnx(file.getvalue(), {name: x.numpy()}).values()
        assert_same_bits(y, small(x))


def shared(of):
    """One layer on two ranges."""

    class Shared(of.Module):
        def __init__(self):
            super().__init__()
            self.first, self.shared = (of.linear(8, inputs=8) for _ in range(2))

        def run(self, x, y):
            return of.tanh(self.shared(self.first(x))) + of.tanh(self.shared(y) / 50)

    return Shared


@pytest.mark.heavy
@pytest.mark.filterwarnings("error:.*share one observer")
def test_a_layer_that_runs_twice_has_a_range_for_each_row():
    """Each call has its own range, alone and in the model; the layer's weight stays one."""
    model, own = pair(shared)
    x, y = torch.randn(32, 8), torch.randn(32, 8) * 50
    small = tq.quantize_model(model, calibrate=[(x, y)])
    served = qnn.quantize_model(own, calibrate=[(x.numpy(), y.numpy())])
    for one in x, y:
        errors = small.shared(one) - model.shared(one)
        assert errors.square().mean() < 1e-4 * model.shared(one).square().mean()
        assert_same_bits(np.asarray(served.shared(one.numpy())), small.shared(one))
    assert type(small.first.module) is tq_layers.Linear
    assert type(small.shared) is tq_layers.dynamic.Linear
    arrays = tensors_of(small)
    assert qnn.to_torch(served).keys() == arrays.keys()
    again = tq.quantize_model(shared(Torch)().eval(), calibrate=[(y, x)])
    again.load_state_dict(small.state_dict())
    assert_same_bits(again(x, y), small(x, y))
    only = tq.quantize_model(model, {"shared": tq.default_qconfig}, [(x, y)])
    assert only.shared.activations == tq.default_observer().rule.form
    assert type(only.first) is torch.nn.Linear
    alone = qnn.quantize_model(own, {"shared": jq.default_qconfig}, [(x.numpy(), y.numpy())])
    assert_same_bits(np.asarray(alone.shared(x.numpy())), only.shared(x))


def joined(of):
    class Joined(of.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = of.conv2d(2, 4, 3), of.conv2d(2, 4, 3), of.conv2d(8, 4)

        def run(self, x):
            x = of.cat([of.relu(self.first(x)), self.second(x) * 1], of.channels)
            return of.mean(of.relu(self.third(x)))

    return Joined


@pytest.mark.heavy
def test_numbers_are_rounded_once_in_front_of_a_concatenation():
    """The layer in front of it has the range of the layer behind it, unless a function is between."""
    model, own = pair(joined)
    images = torch.randn(8, 2, 8, 8)
    small, served = tq.quantize_model(model, None, [images]), qnn.quantize_model(own, None, [channels_last(images)])
    for rows in tq.report(small), qnn.report(served):
        assert rows["first.module"].scale == rows["third.quant"].scale != rows["second.module"].scale
        # Errors of cut numbers do not average out in the mean.
        assert {row.observer for row in rows if row.observer} == {"MinMaxObserver"}


class Buffer(nnx.Variable):
    """No parameter."""


class FlaxGeneral(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.LinearGeneral((2, 3), (2, 2), axis=(-2, -1), rngs=rngs)
        self.second = nnx.Einsum("bi,oi->bo", (3, 4), (3,), rngs=rngs)
        self.norm, self.own = nnx.RMSNorm(3, rngs=rngs), nnx.Param(jnp.arange(3.0))
        self.several = nnx.List([nnx.Param(rngs.params.normal((3,))), Buffer(rngs.params.normal((3,)))])
        self.buffer, self.cache = Buffer(rngs.params.normal(())), nnx.Cache(jnp.ones(3))

    def __call__(self, x):
        y = self.norm(self.second(self.first(x).reshape(-1, 4))) * self.own[...] * self.buffer[...]
        return y * self.several[0][...] + self.several[1][...]


@pytest.mark.parametrize(
    "settings", [None, pytest.param({"first": jq.default_qconfig}, marks=pytest.mark.heavy)], ids=["floats", "integers"]
)
def test_all_arrays_of_a_model_are_carried(settings):
    """Layers of several axes are PyTorch's linear layers, and variables of the model itself have their names."""
    x = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    model, other = (FlaxGeneral(nnx.Rngs(seed)) for seed in range(2))
    if settings is not None:
        model, other = (qnn.quantize_model(one, settings, [x]) for one in (model, other))
    arrays = qnn.to_torch(model)
    assert {"second.weight", "second.bias", "norm.weight", "own"} < arrays.keys()
    assert arrays["second.weight"].shape == (3, 4)
    assert arrays["buffer"].shape == ()
    assert "cache" not in arrays
    made = qnn.from_torch(other, arrays)
    assert_same_bits(np.asarray(made(x)), np.asarray(model(x)))
    if settings is None:
        linear = x.reshape(5, 6) @ arrays["first.weight"].T + arrays["first.bias"]
        np.testing.assert_allclose(np.asarray(model.first(x)).reshape(5, 4), linear, rtol=1e-5, atol=1e-6)
    for missing in "own", "buffer", "several.0", "several.1":
        with pytest.raises(ValueError, match=f"tensors has no '{missing}'"):
            qnn.from_torch(other, {name: array for name, array in arrays.items() if name != missing})


def test_what_pytorch_has_no_arrays_for_is_named():
    stack = nnx.LinearGeneral(3, 4, batch_axis={0: 2}, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="'0' has no arrays in PyTorch: it has batch_axis"):
        qnn.to_torch(nnx.Sequential(stack))
    model = nnx.Sequential()
    model.pair = nnx.Param({"a": jnp.ones(1)})
    with pytest.raises(ValueError, match="pair is a variable of several arrays"):
        qnn.to_torch(model)
    with pytest.raises(TypeError, match=r"allowed is a flax\.nnx\.Module; prepare_fn"):
        qnn.quantize_model(len, None, [np.zeros(3)])


def first(of, largest):
    """A layer; the model's results are some of its, and its largest one or its first one."""

    class First(of.Module):
        def __init__(self):
            super().__init__()
            self.fc = of.linear(1, inputs=1)

        def run(self, x):
            y = self.fc(x)
            return of.cat([y[:400], y.max().reshape(1, 1) if largest else y[:1]])

    return First


@pytest.mark.parametrize(
    ("most", "largest", "expected"),
    [
        pytest.param(1.03, False, "MinMaxObserver", marks=pytest.mark.heavy),
        (1.6, False, "HistogramObserver"),
        (1.6, True, "MinMaxObserver"),
    ],
)
def test_histograms_cut_where_that_saves_much_of_the_error(most, largest, expected):
    """Uniform numbers and one beyond them, which by hand costs the square of what is cut off; rounding, of a step / 12.

    Where the model's results have the largest number, nothing is cut off.
    """
    count = 2**18
    whole, cut = (((1 + end) / 255) ** 2 / 12 for end in (most, 1))
    assert ((cut + (most - 1) ** 2 / count) / whole < 0.95) == (most > 1.5)
    x = np.random.default_rng(0).uniform(-1, 1, (count, 1)).astype(np.float32)
    x[500] = most
    model = first(Torch, largest)().eval()
    torch.nn.init.ones_(model.fc.weight)
    torch.nn.init.zeros_(model.fc.bias)
    own = qnn.from_torch(module_of(first(Flax, largest)), tensors_of(model))
    for rows in (
        tq.report(tq.quantize_model(model, None, [torch.from_numpy(x)])),
        qnn.report(qnn.quantize_model(own, None, [jnp.asarray(x)])),
    ):
        assert rows["fc.quant"].observer == expected


def test_exact_weights_have_as_many_integers_on_both_sides():
    for weight in tq.get_default_qconfig("exact").weight(), tq.get_default_qat_qconfig("exact").weight():
        assert (weight.quant_min, weight.quant_max) == (-127, 127)
    for weight in jq.get_default_qconfig("exact").weight, jq.get_default_qat_qconfig("exact").weight.observer:
        assert (weight.form.qmin, weight.form.qmax) == (-127, 127)
