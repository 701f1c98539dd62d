"""Networks that PyTorch calibrates and converts have the same integers or rounded numbers after every layer in JAX."""

import pytest
import torch
from carrying_support import calibrated, same_at_every_layer, same_state, tensors_of
from covering import usually
from flax_support import module_of
from module_packages import Flax, Torch
from networks import NETWORKS
from safetensors.numpy import load_file, save_file

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qcore.affine import AffineInteger


def integers(activation, weight, channels=False):
    """Settings of so many bits, with one scale for weights or one for each channel."""

    def settings(package):
        kinds = package.MinMaxObserver, package.PerChannelMinMaxObserver if channels else package.MinMaxObserver
        unsigned = kinds[0].with_args(dtype=AffineInteger.of_width(activation, False))
        return package.QConfig(unsigned, kinds[1].with_args(dtype=AffineInteger.of_width(weight), qscheme="symmetric"))

    return settings


def formats(activation, weight):
    """Settings with formats; a name of an observer is of that observer."""
    return lambda package: package.QConfig(*(getattr(package, part, part) for part in (activation, weight)))


def backend(name):
    return lambda package: package.get_default_qconfig(name)


# A network, its settings, and whether JAX runs it eagerly, too.
CASES = {
    "default": ("residual", lambda package: package.default_qconfig, False),
    "qnnpack": ("residual", backend("qnnpack"), False),
    "int4 weights": ("residual", integers(8, 4, True), True),
    "uint4 results": ("residual", integers(4, 8), False),
    "12 bits": ("residual", integers(12, 12, True), False),
    "floats": ("residual", formats("e4m3fn", "e4m3fn"), True),
    "codes of blocks": ("residual", formats("e5m2", "mxfp4"), False),
    "scales in float32": (
        "residual",
        formats("scaled(e4m3fn,{...:None},scale=float32)", "scaled(fixed(8,0),{0:1,...:None},scale=float32)"),
        False,
    ),
    "no codes": ("residual", formats("fixed(8,4)", "block(6)"), False),
    "three scales": ("residual", formats("float(5,2)", "nvfp4"), False),
    "integers and a format": ("residual", formats("MinMaxObserver", "e4m3fn"), False),
    "a format and integers": ("residual", formats("e4m3fn", "default_weight_observer"), False),
    "tables": ("residual", formats("fp4_bnb", "nf4(block=64,nested=4)"), False),
    "micro-exponents": ("residual", formats("e5m2", "mx6"), False),
    "blocks of results": ("perceptron", formats("mxfp8_e4m3", "mxfp8_e4m3"), True),
    "perceptron": ("perceptron", backend("fbgemm"), False),
    "fused": ("digits", backend("fbgemm"), True),
    "all layers": ("layers", backend("qnnpack"), False),
    "all layers in 4 bits": ("layers", integers(4, 4), False),
    "attention": ("attention", backend("fbgemm"), False),
    "paddings": ("paddings", backend("fbgemm"), False),
    "ShuffleNet": ("ShuffleNet", backend("fbgemm"), False),
    "U-Net": ("U-Net", backend("fbgemm"), False),
}
QUICK = "default", "codes of blocks", "blocks of results", "attention", "paddings"


def filled(model):
    """With parameters and statistics that are not the first ones; biases have few bits, so that sums of rounded numbers
    are exact, and no order of them matters."""
    torch.manual_seed(0)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.ndim == 1:
            drawn = torch.rand_like(tensor) + (0.5 if "weight" in name or "var" in name else -0.5)
            tensor.data = (drawn * 2**8).round() / 2**8
    return model


def states(rows):
    return {row.path: (row.state, row.weight, row.output) for row in rows}


@pytest.mark.parametrize("case", usually(QUICK, CASES))
def test_every_layer(case, tmp_path):
    """Of what PyTorch converted, by a file, and of what it observed and JAX converts; and their arrays and reports."""
    name, settings, eager = CASES[case]
    network = NETWORKS[name]
    torch.manual_seed(3)  # with which sums of scaled numbers have the same bits in any order
    floats = filled(network.make(Torch)().eval())
    own = qnn.from_torch(module_of(network.make(Flax)), tensors_of(floats))
    own.eval()
    same_state(qnn.to_torch(own), tensors_of(floats))
    fused, rows = floats, floats.rows
    if rows:
        fused, own = tq.fuse_modules(floats, rows), qnn.fuse_modules(own, rows)
        same_state(qnn.to_torch(own), tensors_of(fused))
    observed = calibrated(fused, settings(tq), network.inputs(16), network.inputs(16, 1))
    converted = tq.convert(observed)
    arrays = tensors_of(converted)
    save_file(arrays, tmp_path / "model.safetensors")
    served = qnn.from_torch(own, load_file(tmp_path / "model.safetensors"), settings(jq))
    prepared = qnn.from_torch(qnn.prepare(own, settings(jq)), tensors_of(observed))
    same_state(
        qnn.to_torch(prepared), {key: array for key, array in tensors_of(observed).items() if not key.endswith(".eps")}
    )
    for model in (served, qnn.convert(prepared)):
        same_state(qnn.to_torch(model), arrays)
        assert states(qnn.report(model)) == states(tq.report(converted))
    x = network.inputs(8, 2)
    same_at_every_layer(converted, served, x, eager=eager)
    converted.load_state_dict({key: torch.tensor(array) for key, array in qnn.to_torch(served).items()})
    exact = floats(torch.from_numpy(x)).detach()
    error = (converted(torch.from_numpy(x)).detach() - exact).norm() / exact.norm()
    assert error < (0.7 if case.endswith("4 bits") else 0.3)
