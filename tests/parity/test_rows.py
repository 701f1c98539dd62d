"""One row for one operation (`qcore.affine.rows`): what the packages have of it fits the row, torch and JAX."""

import pickle
import re
from inspect import getdoc, signature

import jax
import numpy as np
import pytest
import torch

from qcore.affine import UINT8, QArray, QParams, functional
from qcore.affine.rows import OPERATIONS
from qjax import nnx
from qjax.nnx.quantized.activation import LAWS
from qjax.quantization import functional as jax_functional
from qtorch.nn import quantized
from qtorch.nn.quantized import functional as torch_functional
from qtorch.quantization import QTensor, get_default_static_quant_module_mappings, quantize_per_tensor
from qtorch.quantization.reasons import PASSING, ROUNDING
from qtorch.quantization.subclasses import SamePad

MODULES = functional, jax_functional, torch_functional


def defaults(function, names):
    return {name: signature(function).parameters[name].default for name in names}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_law_is_public(name):
    assert getattr(functional, name) is OPERATIONS[name].law
    assert name in functional.__all__


@pytest.mark.parametrize("name", [name for name, row in OPERATIONS.items() if row.layers])
def test_layers_replace_those_of_torch(name):
    for layer in OPERATIONS[name].layers:
        assert get_default_static_quant_module_mappings()[getattr(torch.nn, layer)] is getattr(quantized, layer)


@pytest.mark.parametrize("name", LAWS)
def test_layers_have_the_settings_of_the_law(name):
    """By torch's names, and with its values; so has JAX's layer."""
    row = OPERATIONS[name]
    (layer,) = row.layers
    own = defaults(row.law, row.settings)
    for package in (torch.nn, quantized):
        assert defaults(getattr(package, layer), row.in_torch(own)) == row.in_torch(own)
    assert defaults(getattr(nnx, layer).__init__, own) == own


@pytest.mark.parametrize("name", LAWS)
def test_layers_of_jax_know_their_row(name):
    row = OPERATIONS[name]
    assert getattr(nnx, row.layers[0]).law == name
    assert list(
        defaults(getattr(jax.nn, row.flax), [*signature(getattr(jax.nn, row.flax)).parameters][1:]).values()
    ) == [*defaults(row.law, row.settings).values()]


def test_pickles_name_functions_where_they_were():
    """Models may hold functions; a pickle has the module in which a function stood."""
    for module, names in {
        "functional": "celu elu hardswish",
        "torch_functions": "hardsigmoid leaky_relu max_pool2d clamp relu threshold interpolate upsample_nearest",
    }.items():
        for name in names.split():
            function = pickle.loads(f"cqtorch._affine.{module}\n{name}\n.".encode())
            assert function is getattr(torch_functional, name) is pickle.loads(pickle.dumps(function))


def test_jax_takes_images_by_name():
    q = QArray(np.uint8([[[3, 5, 4, 9]]]), QParams.of(0.1, 7), UINT8)
    assert jax_functional.max_pool(input=q, dimensions=1, kernel_size=2).values.tolist() == [[[5, 9]]]
    assert "channels_last" in signature(jax_functional.max_pool).parameters


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_functions_can_be_pickled(module):
    functions = [getattr(module, name) for name in module.__all__]
    assert pickle.loads(pickle.dumps(functions)) == functions


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_documents_have_each_argument(module):
    """Of the functions that get theirs of a row."""
    for name in OPERATIONS.keys() & {*module.__all__}:
        function = getattr(module, name)
        for parameter in signature(function).parameters:
            assert re.search(rf"^    [\w, ]*\b{parameter}\b[\w, ]*: \S", getdoc(function) or "", re.M), (
                name,
                parameter,
            )


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_pools_pass_quantized_tensors(dimensions):
    """Layers of torch.nn beside torch's own pools of the integers in float64."""
    values = torch.randint(0, 256, (2, 3, *(4, 6, 8)[:dimensions]), generator=torch.Generator().manual_seed(0))
    q = QTensor(values.to(torch.uint8), QParams(torch.tensor(0.1), torch.tensor(7, dtype=torch.int32)), UINT8)
    for law in ("max_pool", "avg_pool", "adaptive_avg_pool"):
        layer = getattr(torch.nn, OPERATIONS[law].passing[dimensions - 1])(2)
        zero = 0 if "adaptive" in law else 7  # what the law takes off before it rounds ties to even
        exact = layer(values.double() - zero)
        assert type(layer) in PASSING
        assert (type(layer) in ROUNDING) == ("avg" in law)
        assert torch.equal(layer(q).int_repr(), (exact.round() + zero).to(torch.uint8))
        function = getattr(torch_functional, f"{law}{dimensions}d")
        assert torch.equal(function(q, 2).int_repr(), layer(q).int_repr())


GIVEN = {
    "Unflatten": (1, (2, 2)),
    "PixelShuffle": (2,),
    "PixelUnshuffle": (2,),
    "ChannelShuffle": (2,),
    "Upsample": (8,),
}
GIVEN |= {"Threshold": (0.5, 0.25)}
STARTS = {"ConstantPad": (1, 0.25), "AdaptiveAvgPool": (2,), "AvgPool": (2,), "MaxPool": (2,)}


@pytest.mark.parametrize("kind", [kind for kind in PASSING if kind is not SamePad], ids=lambda kind: kind.__name__)
def test_layers_that_pass_keep_the_parameters(kind):
    """And the numbers, but for the means, which are rounded."""
    name = kind.__name__
    dimensions = int(name[-2]) if re.search(r"\dd$", name) else 2
    default = (1,) if "Pad" in name else ()
    given = GIVEN.get(name, next((one for start, one in STARTS.items() if name.startswith(start)), default))
    x = torch.randint(0, 64, (1, 4, *(4,) * dimensions), generator=torch.Generator().manual_seed(0)) / 32
    q = quantize_per_tensor(x, 1 / 32, 7, torch.quint8)
    layer = kind(*given).eval()
    found, exact = layer(q), layer(x)
    assert (found.q_scale(), found.q_zero_point(), found.shape) == (1 / 32, 7, exact.shape)
    assert (found.dequantize() - exact).abs().max() <= (1 / 64 if kind in ROUNDING else 0)
