"""Models that PyTorch calibrates and converts have the same integers after every layer in JAX."""

import pytest
import torch
from carrying_support import (
    JaxNet,
    TorchNet,
    calibrated,
    images,
    same_at_every_layer,
    tensors_of,
)
from flax import nnx
from flax_support import module_of

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qcore.affine import AffineInteger

INT4, UINT4, INT12 = AffineInteger.of_width(4), AffineInteger.of_width(4, False), AffineInteger.of_width(12)


def settings(package, observer="MinMaxObserver", weight="PerChannelMinMaxObserver", form="quint8", weight_form="qint8"):
    """The same settings in either package."""
    of = (lambda form: getattr(torch, form)) if package is tq else (lambda form: form)
    forms = [of(one) if isinstance(one, str) else one for one in (form, weight_form)]
    scheme = of(("per_channel" if "Channel" in weight else "per_tensor") + "_symmetric")
    activation = getattr(package, observer).with_args(dtype=forms[0])
    weights = getattr(package, weight).with_args(dtype=forms[1], qscheme=scheme)
    return package.QConfig(activation, weights)


CASES = {
    "default": (tq.default_qconfig, jq.default_qconfig),
    "qnnpack": (tq.get_default_qconfig("qnnpack"), jq.get_default_qconfig("qnnpack")),
    **{
        name: tuple(settings(package, **choice) for package in (tq, jq))
        for name, choice in {
            "int4 weights": {"weight_form": INT4},
            "uint4 results": {"form": UINT4, "weight": "MinMaxObserver"},
            "12 bits": {"form": INT12, "weight_form": INT12},
        }.items()
    },
}


USUAL = ("default",)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in USUAL else pytest.mark.heavy) for case in CASES]
)
def test_converted_in_torch_and_served_in_jax(case):
    torch.manual_seed(len(case))
    of_torch, of_jax = CASES[case]
    converted = tq.convert(calibrated(TorchNet(), of_torch, images(16), images(16, 1)))
    model = qnn.from_torch(module_of(lambda: JaxNet(nnx.Rngs(0))), tensors_of(converted), of_jax)
    same_at_every_layer(converted, model, images(8, 2), eager=case == "int4 weights")


@pytest.mark.heavy
def test_calibrated_in_torch_and_converted_in_jax():
    torch.manual_seed(1)
    of_torch, of_jax = CASES["qnnpack"]
    observed = calibrated(TorchNet(), of_torch, images(16))
    prepared = qnn.prepare(module_of(lambda: JaxNet(nnx.Rngs(0))), of_jax)
    model = qnn.convert(qnn.from_torch(prepared, tensors_of(observed)))
    arrays, expected = qnn.to_torch(model), tensors_of(tq.convert(observed))
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }
