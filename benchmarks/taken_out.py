"""What models cost in onnxruntime: in floats, exact, with exact=False, and as onnxruntime's own quantizer writes them.

Usage:
    python -m benchmarks.taken_out                     all models
    python -m benchmarks.taken_out --seconds 5 --json taken_out.json

The four files of a model take turns on one thread, and medians are compared. Both quantizers see the same data. The
signal over the error, in decibels, is against the model of floats; differing results are the part that is not equal in
the two files of ours.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from rich.console import Console
from torch import nn

from benchmarks.support.results import write_results
from benchmarks.support.timing import by_turns, clock_for, keep_pages, machine, versions
from qcore.tables import fitted_table
from qtorch.export import to_onnx
from qtorch.quantization import quantize_dynamic, quantize_model

HEAD = ("model", "float ms", "exact", "exact=False", "onnxruntime's", "dB", "onnxruntime's dB", "differ")


@dataclass(frozen=True)
class Row:
    """A model: milliseconds of a call in onnxruntime, decibels against floats, and the part of results that differ."""

    model: str
    floats: float
    exact: float
    near: float
    theirs: float
    decibels: float
    decibels_of_theirs: float
    differing: float | None

    def cells(self) -> tuple[str, ...]:
        times = (f"{one / self.floats:.2f}" for one in (self.exact, self.near, self.theirs))
        differing = "-" if self.differing is None else f"{self.differing:.2%}"
        quality = f"{self.decibels:.1f}", f"{self.decibels_of_theirs:.1f}", differing
        return self.model, f"{self.floats:.2f}", *times, *quality


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.other = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.other(self.second(torch.relu(self.norm(self.first(x))))))


class Encoder(nn.Module):
    """A layer of a transformer without attention's products: norms, projections, GELU and sums."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def _convolutions() -> nn.Module:
    parts = (part for _ in range(6) for part in (nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()))
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *parts)


def _residual() -> nn.Module:
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), *(Block(64) for _ in range(3)), *ends)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64))


def _separable() -> nn.Module:
    parts = (
        part
        for _ in range(4)
        for part in (
            nn.Conv2d(64, 64, 3, padding=1, groups=64),
            nn.BatchNorm2d(64),
            nn.Hardswish(),
            nn.Conv2d(64, 64, 1),
        )
    )
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *parts)


IMAGES = (2, 3, 32, 32)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "7 convolutions": (_convolutions, IMAGES),
    "3 residual blocks": (_residual, IMAGES),
    "4 separable convolutions, Hardswish": (_separable, IMAGES),
    "3 linear layers, 64 rows": (_perceptron, (64, 512)),
    "2 encoder layers": (lambda: nn.Sequential(Encoder(256), Encoder(256)), (2, 64, 256)),
    "dynamic: 3 linear layers, 64 rows": (_perceptron, (64, 512)),
}


class _Reader:
    """Calibration data as onnxruntime reads it."""

    def __init__(self, name: str, batches: list[torch.Tensor]) -> None:
        self._feeds = iter([{name: x.numpy()} for x in batches])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def _quantized_by_theirs(source: Path, target: Path, batches: list[torch.Tensor], dynamic: bool) -> None:
    from onnxruntime import quantization as theirs

    if dynamic:
        theirs.quantize_dynamic(source, target, per_channel=True)
        return
    prepared = source.with_suffix(".prepared.onnx")
    theirs.quant_pre_process(source, prepared)
    name = _session(source).get_inputs()[0].name
    reader: Any = _Reader(name, batches)
    theirs.quantize_static(prepared, target, reader, quant_format=theirs.QuantFormat.QDQ, per_channel=True)


def _session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])


def measured(name: str, seconds: float) -> Row:
    """The files of a model, run by turns."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    dynamic, model = name.startswith("dynamic"), make().eval()
    batches = [torch.randn(shape) for _ in range(4)]
    x = torch.randn(shape)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = [Path(folder, f"{kind}.onnx") for kind in ("float", "exact", "near", "theirs")]
        torch.onnx.export(model, (x,), files[0], dynamo=True, external_data=False, verbose=False)
        small = quantize_dynamic(model) if dynamic else quantize_model(model, calibrate=batches)
        for file, exact in zip(files[1:3], (True, False), strict=True):
            to_onnx(small, (x,), file, exact=exact)
        _quantized_by_theirs(files[0], files[3], batches, dynamic)
        sessions = [_session(file) for file in files]
    calls = [partial(one.run, None, {one.get_inputs()[0].name: x.numpy()}) for one in sessions]
    results: list[Any] = [one()[0] for one in calls]
    floats, exact, near, theirs = results
    first, second, third, fourth = (1e3 * one.median for one in by_turns(calls, clock_for("cpu"), seconds))
    differing = None if dynamic else float(np.mean(exact != near))  # whose results are floats
    quality = _decibels(floats, near), _decibels(floats, theirs)
    return Row(name, first, second, third, fourth, *quality, differing)


def _decibels(exact: Any, found: Any) -> float:
    return float(20 * np.log10(np.linalg.norm(exact) / np.linalg.norm(exact - found)))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time files of quantized models in onnxruntime.")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each model, five turns at least")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)  # of onnxruntime's quantizer
    console = Console(highlight=False)
    facts = {
        "versions": versions() | {"onnxruntime": metadata.version("onnxruntime")},
        "machine": machine("cpu"),
    }
    rows = [measured(name, options.seconds) for name in MODELS]
    for lines in fitted_table(HEAD, [row.cells() for row in rows], console.width, HEAD[1:]):
        console.print("\n".join(lines), soft_wrap=True)
    if options.json:
        write_results(options.json, facts | {"rows": [asdict(row) for row in rows]})
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
