"""Models as ONNX: onnxruntime has the library's integers at every layer, with and without its optimizations."""

import io

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from covering import usually
from export_support import check, check_dynamic, operators, run, sessions
from front_models import BasicBlock, InvertedResidual, Transformer
from onnx.reference import ReferenceEvaluator
from torch import nn

import qtorch
from qcore import RECIPES
from qcore.exchange import graph
from qtorch.export import to_onnx, to_qonnx
from qtorch.quant import Quantizer
from qtorch.quantization import (
    FakeQuantize,
    QConfig,
    QuantWrapper,
    default_dynamic_qconfig,
    default_per_channel_weight_observer,
    get_default_qat_qconfig,
    prepare_qat,
    quantize_dynamic,
    quantize_model,
    report,
)
from qtorch.recipes import lower


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    return nn.Sequential(*layers).eval()


def test_a_static_network(tmp_path):
    """A batch of any size; a NaN, infinities and numbers beyond the range become what they are here."""
    x = normal(3, 3, 6, 6)
    odd = x.clone()
    odd[0, 0, 0, :4] = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30])
    model = quantize_model(network(), calibrate=[x])
    sizes = ({0: torch.export.Dim("batch")},)
    made, compared = check(model, (x,), tmp_path, others=[(odd[:2],)], dynamic_shapes=sizes)
    assert compared >= 4
    assert {"ConvInteger", "MatMulInteger"} <= operators(made)
    assert {node.domain for node in made.graph.node} == {""}
    assert [one.version for one in made.opset_import] == [19]
    assert "0.module/Requantize" in {name for node in made.graph.node for name in node.output}


def by_torch(model, x, sizes, file):
    """What onnxruntime computes of the file that torch's own exporter makes of an exported program."""
    program = torch.export.export(model, (x,), dynamic_shapes=sizes)
    torch.onnx.export(program, dynamo=True, verbose=False).save(file)
    session = onnxruntime.InferenceSession(file)
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def test_torch_writes_exported_programs(tmp_path):
    x, sizes = normal(3, 3, 6, 6), ({0: torch.export.Dim("batch")},)
    model = quantize_model(network(), calibrate=[x])
    assert torch.equal(by_torch(model, x, sizes, tmp_path / "model.onnx"), model(x))


@pytest.mark.heavy
def test_torch_writes_other_exported_programs(tmp_path):
    """Of more terms than float32 adds exactly; groups, steps, one and transposed dimensions; rows by their range."""
    groups = nn.Conv2d(4, 8, 3, groups=4), nn.ReLU6(), nn.Conv2d(8, 4, 3, stride=2, padding=2, dilation=2)
    models = [
        (nn.Sequential(nn.Linear(3000, 4)), normal(2, 3000)),
        (nn.Sequential(*groups, nn.Hardswish(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)), normal(2, 4, 8, 8)),
        (nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8)), normal(2, 4, 9)),
        (nn.Sequential(nn.ConvTranspose2d(4, 8, 3, stride=2)), normal(2, 4, 8, 8)),
        (nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8)), normal(2, 16)),
    ]
    for number, (model, x) in enumerate(models):
        small = quantize_model(model.eval(), calibrate=[x])
        assert torch.equal(by_torch(small, x, None, tmp_path / f"{number}.onnx"), small(x)), model
    dynamic = quantize_model(nn.Sequential(nn.Linear(16, 8)).eval(), default_dynamic_qconfig)
    assert torch.equal(by_torch(dynamic, normal(4, 16), None, tmp_path / "dynamic.onnx"), dynamic(normal(4, 16)))


WHOLE = {
    "residual": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), BasicBlock(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    ),
    "mobilenet": lambda: nn.Sequential(InvertedResidual(3, 6, 2, 2), InvertedResidual(6, 6, 1, 3)),
    "gpt": Transformer,
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
}


@pytest.mark.filterwarnings("ignore:these layers stay in floats")
@pytest.mark.heavy
@pytest.mark.parametrize("name", WHOLE)
def test_whole_static_models(name, tmp_path):
    torch.manual_seed(0)
    shape = (2, 5, 8) if name == "transformer" else (2, 3, 8, 8)
    given, other = (torch.randint(11, (2, 6)) if name == "gpt" else normal(*shape, seed=seed) for seed in range(2))
    exact = name in ("residual", "mobilenet")
    _, compared = check(quantize_model(WHOLE[name]().eval(), calibrate=[given]), (other,), tmp_path, exact)
    assert compared >= 5


def test_a_number_that_is_not_finite_makes_dynamic_results_nan(tmp_path):
    model, x = quantize_dynamic(nn.Sequential(nn.Linear(6, 5)).eval()), normal(2, 6)
    to_onnx(model, (x,), tmp_path / "model.onnx")
    for number in (np.nan, np.inf, -np.inf):
        broken = x.clone()
        broken[1, 2] = number
        assert model(broken).isnan().all()
        for session in sessions(tmp_path / "model.onnx"):
            assert np.isnan(run(session, (broken,))[0]).all()


@pytest.mark.heavy
def test_dynamic_gpt(tmp_path):
    """Floats between layers have another order in the runtime; the integers of inputs, and their sums, are the same."""
    torch.manual_seed(0)
    model, words = quantize_model(Transformer().eval(), default_dynamic_qconfig), torch.randint(11, (2, 6))
    check(model, (words,), tmp_path, exact=False)
    assert check_dynamic(model, (words,), tmp_path) == 5


@pytest.mark.heavy
def test_a_network_trained_with_fake_quantization(tmp_path):
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)), normal(4, 3, 6, 6)
    model.qconfig = get_default_qat_qconfig()
    model = prepare_qat(QuantWrapper(model))
    model(x)
    made, _ = check(model.eval(), (x,), tmp_path, exact=False)
    weights = [one for one in made.graph.initializer if one.data_type == onnx.TensorProto.INT8 and len(one.dims) > 1]
    assert len(weights) == 2
    assert "DequantizeLinear" in operators(made)


# The formats of weights, the type in which ONNX keeps them, and the opset that has it.
WEIGHTS = {
    "int8": (default_per_channel_weight_observer, "INT8", 19),
    "groups of int4": (qtorch.BlockScaled("int4", {-1: 32}, scale="float32"), "INT4", 21),
    "int4": (qtorch.parse("int4"), "INT4", 21),
    "e4m3fn": (qtorch.parse("e4m3fn"), "FLOAT8E4M3FN", 19),
    "fixed(16,12)": (qtorch.parse("fixed(16,12)"), "INT16", 21),
    "mxfp8": (qtorch.parse("mxfp8_e5m2"), "FLOAT8E5M2", 21),
    "mxfp4": (qtorch.parse("mxfp4"), "FLOAT4E2M1", 24),
    "nvfp4": (qtorch.parse("nvfp4"), "FLOAT4E2M1", 23),
    "nf4": (qtorch.parse("nf4"), "FLOAT", 19),
}


@pytest.mark.parametrize("name", usually(("nvfp4",), WEIGHTS))
def test_weights_alone(name, tmp_path):
    """The numbers of weights are the library's, in the smallest type that holds their elements."""
    torch.manual_seed(0)
    number, kind, opset = WEIGHTS[name]
    model = quantize_model(nn.Sequential(nn.Linear(64, 3)).eval(), QConfig(None, number))
    to_onnx(model, (normal(2, 64),), tmp_path / "model.onnx")
    made = onnx.load(tmp_path / "model.onnx")
    assert made.opset_import[0].version == opset
    (stored,) = (one for one in made.graph.initializer if list(one.dims) in ([3, 64], [64, 3]))
    assert onnx.TensorProto.DataType.Name(stored.data_type) == kind
    weight = (
        next(name for node in made.graph.node for name in node.output if name.startswith("0.weight"))
        if kind != "FLOAT"
        else stored.name
    )
    if kind == "FLOAT":
        found = onnx.numpy_helper.to_array(stored)
    else:
        made.graph.output.append(onnx.helper.make_tensor_value_info(weight, onnx.TensorProto.FLOAT, None))
        found = ReferenceEvaluator(made).run([weight], {made.graph.input[0].name: normal(2, 64).numpy()})[0]
    expected = next(module for name, module in model.named_modules() if name == "0.weight")
    numbers = expected() if isinstance(expected(), torch.Tensor) else expected().dequantize()
    assert np.array_equal(found.view(np.int32), numbers.numpy().view(np.int32))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:these layers stay in floats")
def test_a_loop_of_the_exporter(tmp_path):
    """An EmbeddingBag stays in floats and is a loop over a list of tensors, which reads names from outside."""
    torch.manual_seed(0)
    words = torch.tensor([[1, 2, 3], [4, 4, 0]])
    model = quantize_model(nn.Sequential(nn.EmbeddingBag(10, 4), nn.Linear(4, 3)).eval(), calibrate=[words])
    to_onnx(model, (words,), tmp_path / "model.onnx")
    for session in sessions(tmp_path / "model.onnx"):
        assert np.array_equal(run(session, (words,))[0], model(words).numpy())


@pytest.mark.heavy
def test_formats_of_activations(tmp_path):
    x = normal(2, 3, 6, 6)
    made, _ = check(quantize_model(network(), QConfig("e4m3fn", "e5m2"), calibrate=[x]), (x,), tmp_path, exact=False)
    assert {"Cast", "DequantizeLinear", "Conv"} <= operators(made)


def test_rounding_to_formats(tmp_path):
    rounding = [Quantizer(qtorch.parse(text), forward_rounding="nearest") for text in ("fixed(8,4)", "e4m3fn", "nf4")]
    check(nn.Sequential(*rounding), (300 * normal(500),), tmp_path)


class Special(nn.Module):
    def forward(self, x):
        return torch.histc(x)


ERRORS = {
    "a format of 19 bits": (
        lambda: nn.Sequential(nn.ReLU(), Quantizer(qtorch.parse("tf32"), forward_rounding="nearest")),
        r"^1: rounding to 'tf32' by 'nearest' cannot be said in ONNX; .* 16 bits.* to_qonnx .* below 2\^-125$",
    ),
    "scales of blocks": (
        lambda: nn.Sequential(Quantizer(qtorch.parse("mxfp4"), forward_rounding="nearest")),
        "^0: rounding to 'mxfp4'",
    ),
    "random bits": (
        lambda: nn.Sequential(Quantizer(qtorch.parse("e5m2"), forward_rounding="stochastic")),
        r"^0: draw_key cannot be said in ONNX \(random bits",
    ),
    "an accumulator": (
        lambda: lower(nn.Sequential(nn.Linear(9, 9)), qtorch.RECIPES["mxfp8"]),
        "^0: product cannot be said",
    ),
    "an operator of torch": (
        lambda: nn.Sequential(nn.ReLU(), Special()),
        r"^1: torch.onnx.export cannot translate aten.histc.default \(aten_histc with min",
    ),
    "training": (lambda: nn.Dropout().train(), r"^model is in training; allowed is evaluation: model.eval\(\)"),
}


@pytest.mark.parametrize("name", usually({*ERRORS} - {"scales of blocks", "an accumulator"}, ERRORS))
def test_errors_name_the_layer(name, tmp_path):
    make, message = ERRORS[name]
    model = make()
    model = model if name == "training" else model.eval()
    with pytest.raises(ValueError, match=message):
        to_onnx(model, (normal(9, 9),), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_wrong_arguments(tmp_path):
    with pytest.raises(TypeError, match=r"model is a int; allowed is a torch\.nn\.Module"):
        to_onnx(3, (), tmp_path / "model.onnx")
    with pytest.raises(TypeError, match=r"args is a Tensor; allowed is a tuple"):
        to_onnx(nn.ReLU().eval(), normal(1), tmp_path / "model.onnx")
    for args in ((np.ones(2),), ({"x": [np.float32(1)]},)):
        with pytest.raises(TypeError, match=r"an input is a (ndarray|float32); allowed are tensors, and numbers"):
            to_onnx(nn.ReLU().eval(), args, tmp_path / "model.onnx")
    with pytest.raises(TypeError, match=r"dynamic_shapes is a str; allowed is None, a dict, a tuple or a list"):
        to_onnx(nn.ReLU().eval(), (normal(1),), tmp_path / "model.onnx", dynamic_shapes="batch")


@pytest.mark.parametrize("write", [to_onnx, pytest.param(to_qonnx, marks=pytest.mark.heavy)])
def test_a_file_in_memory(write, tmp_path):
    model, x, file = nn.Sequential(nn.Linear(4, 3)).eval(), normal(2, 4), io.BytesIO()
    write(model, (x,), file)
    write(model, (x,), tmp_path / "model.onnx")
    assert file.getvalue() == (tmp_path / "model.onnx").read_bytes()
    for wrong in (3, io.StringIO()):
        with pytest.raises(
            TypeError, match=r"file is a (int|StringIO); allowed is .* open for bytes, such as io\.BytesIO"
        ):
            write(model, (x,), wrong)


@pytest.mark.heavy
def test_models_of_float64(tmp_path):
    """Inputs beside ties, where a file that rounds them to float32 first has other integers."""
    x, model = normal(64, 4).double(), nn.Sequential(nn.Linear(4, 3), nn.ReLU()).double().eval()
    small, fake = quantize_model(model, calibrate=[x]), FakeQuantize()
    scale = next(float(part.scale) for part in small.modules() if hasattr(part, "scale"))
    x = (torch.arange(256).reshape(64, 4) - 128.5) * scale * (1 + 1e-12 * x)
    fake(x)
    for index, exported in enumerate((small, nn.Sequential(fake).eval())):
        to_onnx(exported, (x,), tmp_path / f"{index}.onnx")
        session = onnxruntime.InferenceSession(tmp_path / f"{index}.onnx")
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert found.dtype == np.float64
        assert np.array_equal(found, exported(x).detach().numpy())


class ByName(nn.Module):
    """A model of inputs by name, one of which is left out."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, audio, mask=None, *, text):
        assert mask is None
        return self.second(torch.relu(self.first(audio)) + text)


def test_inputs_have_names(tmp_path, monkeypatch):
    """A small bound stands for 2 GB, beyond which weights lie in a file beside the model's."""
    inputs = {"audio": normal(3, 4), "text": normal(3, 4, seed=2)}
    model = quantize_model(ByName().eval(), calibrate=[inputs])
    first = inputs["audio"]
    for place, (args, kwargs) in enumerate([((), inputs), ((first,), {"text": inputs["text"]})]):
        monkeypatch.setattr(graph, "_MOST", 2**30 if place else 20)
        to_onnx(model, args, tmp_path / f"{place}.onnx", kwargs=kwargs)
        session = onnxruntime.InferenceSession(tmp_path / f"{place}.onnx")
        (found,) = session.run(None, {name: one.numpy() for name, one in inputs.items()})
        assert np.array_equal(found, model(**inputs))
    assert {one.name for one in tmp_path.iterdir()} == {"0.onnx", "0.onnx.data", "1.onnx"}
    for wrong in ([first], {1: first}):
        with pytest.raises(TypeError, match=r"^kwargs"):
            to_onnx(model, (), tmp_path / "model.onnx", kwargs=wrong)
    with pytest.raises(TypeError, match=r"an input is a ndarray; allowed are tensors"):
        to_onnx(model, (), tmp_path / "model.onnx", kwargs={"audio": first.numpy()})


@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, (normal(2, 3),))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_programs_of_torch_jit_are_refused(make, tmp_path):
    program = make(nn.Sequential(nn.Linear(3, 3)).eval())
    for call in (
        lambda: to_onnx(program, (normal(2, 3),), tmp_path / "model.onnx"),
        lambda: quantize_model(program, calibrate=[normal(2, 3)]),
        lambda: report(program),
        lambda: lower(program, RECIPES["mxfp8"]),
    ):
        with pytest.raises(TypeError, match=r"^model is a \w+Module, a program of torch\.jit; allowed is the torch"):
            call()
    with pytest.raises(TypeError, match=r"^model\.1 is a \w+Module, a program of torch\.jit"):
        quantize_model(nn.Sequential(nn.Linear(3, 3), program), QConfig(None, "e4m3fn"))
