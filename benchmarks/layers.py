"""How fast layers in integers are, against torch.ao's own, against float32, training with fake quantization, and layers
whose weights alone are quantized.

Usage:
    python -m benchmarks.layers                        everything, on the CPU
    python -m benchmarks.layers --seconds 5 --json layers.json
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python -m benchmarks.layers --engine onednn

torch's default engine takes the processor's instructions for int8 whatever the first variable says, so only the third
line compares AVX2 with AVX2.

All calls of a row take turns, and medians are compared. Each row has its limit, and says whether it is met; the exit
status is 0 all the same: a benchmark reports, it does not judge.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import nn

import qjax.nnx
import qjax.quantization
from benchmarks.support import integer_networks
from benchmarks.support.results import write_results
from benchmarks.support.timing import Call, by_turns, clock_for, keep_pages, machine, versions
from qtorch import quantization
from qtorch.nn.quantized import FloatFunctional

NOISE = 1.05  # times as long, which two runs of the same call may differ by
SIZE = 1024  # of all three sides of linear layers
WIDTH = 150  # columns, which the table needs


@dataclass(frozen=True)
class Row:
    """A layer against another; times are medians in seconds a call, and the fastest."""

    what: str
    against: str
    seconds: float
    baseline: float
    fastest: float
    fastest_baseline: float
    limit: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline

    @property
    def met(self) -> bool:
        return self.ratio <= self.limit

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "met": self.met}


class Case(NamedTuple):
    """A call, and what it is compared with: a name, a call and the largest ratio that is promised."""

    what: str
    call: Call
    others: tuple[tuple[str, Call, float], ...]


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    f"linear {SIZE} x {SIZE} x {SIZE}": (partial(nn.Linear, SIZE, SIZE), (SIZE, SIZE), 1.3),
    "conv 3x3, 64 to 64, 8 x 28 x 28": (partial(nn.Conv2d, 64, 64, 3, padding=1), (8, 64, 28, 28), 2.0),
    "conv 1x1, 128 to 128, 8 x 28 x 28": (partial(nn.Conv2d, 128, 128, 1), (8, 128, 28, 28), 2.0),
    "depthwise 3x3, 128, 8 x 28 x 28": (
        partial(nn.Conv2d, 128, 128, 3, padding=1, groups=128),
        (8, 128, 28, 28),
        2.0,
    ),
}


DYNAMIC: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "dynamic linear 512 x 512, 32 rows": (partial(nn.Linear, 512, 512), (32, 512), 2.0),
    "dynamic linear 512 x 512, 1 row": (partial(nn.Linear, 512, 512), (1, 512), 2.0),
    "dynamic LSTM 40 to 64, 20 steps x 4": (partial(nn.LSTM, 40, 64), (20, 4, 40), 3.0),
    "dynamic LSTM 40 to 256, 3 layers, 60 steps x 8": (partial(nn.LSTM, 40, 256, 3), (60, 8, 40), 3.0),
    "dynamic GRU 40 to 64, 20 steps x 4": (partial(nn.GRU, 40, 64), (20, 4, 40), 3.0),
}


# Formats of weights alone, and how many times a lookup and a product their layers may take: codes of 4 and 8 bits lie
# in whole bytes or halves, others over their ends.
WEIGHTS = {
    "e4m3fn": 1.3,
    "mxfp8_e4m3": 1.3,
    "mxfp4": 1.3,
    "nf4(block=64)": 1.3,
    "nvfp4": 1.3,
    "e3m2fn": 1.6,
}


def converted(package: Any, layer: nn.Module, x: torch.Tensor) -> tuple[nn.Module, Any]:
    """A layer that a package quantized, and its quantized input, with channels last in memory."""
    model = package.QuantWrapper(layer).eval()
    model.qconfig = package.get_default_qconfig("fbgemm")
    prepared = package.prepare(model)
    prepared(x)
    model = package.convert(prepared)
    return model.module, model.quant(x)


def layer_cases(peer: Any) -> Iterator[Case]:
    for name, (make, shape, limit) in LAYERS.items():
        generator = torch.Generator().manual_seed(0)
        layer, x = make().eval(), torch.randn(shape, generator=generator)
        if len(shape) == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        ours, theirs = (converted(package, layer, x) for package in (quantization, peer))
        others = [("torch.ao", partial(theirs[0], theirs[1]), limit)]
        if len(shape) == 2:
            others.append(("float32", partial(layer, x), 1.0 * NOISE))
        yield Case(name, partial(ours[0], ours[1]), tuple(others))


def network_cases(peer: Any) -> Iterator[Case]:
    """Small networks, where what surrounds the products counts, and dynamic layers."""
    functional = {quantization: FloatFunctional, peer: torch.ao.nn.quantized.FloatFunctional}
    networks: dict[str, tuple[Callable[[Any], integer_networks.Quantized], float]] = {
        "ResNet-18, 2 x 3 x 32 x 32": (lambda package: integer_networks.resnet18(package, functional[package]), 2.0),
        "8 conv 3x3 of 16 channels, 16 x 16": (integer_networks.convolutions, 2.0),
        "conv-bn-relu, 3 to 16, 32 x 32": (integer_networks.conv_bn_relu, 2.0),
    }
    for name, (make, shape, limit) in DYNAMIC.items():
        networks[name] = (lambda package, make=make, shape=shape: integer_networks.dynamic(package, make, shape)), limit
    for name, (build, limit) in networks.items():
        ours, theirs = (build(package) for package in (quantization, peer))
        yield Case(name, partial(*ours), (("torch.ao", partial(*theirs), limit),))


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
    return nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 256, 10))


def training_step(package: Any, settings: dict[str, Any], stable: bool = False) -> Call:
    """One step of a network whose weights and outputs a package rounds in training, its batch norm being fused.

    `stable` chooses torch.ao's numerically stable form of a convolution with a batch norm, which is qtorch's.
    """
    model = package.fuse_modules_qat(small_network().train(), [["0", "1", "2"], ["3", "4"]])
    model.qconfig = package.get_default_qat_qconfig("fbgemm", **settings)
    model = package.prepare_qat(model)
    if stable:
        for module in model.modules():
            module._enable_slow_path_for_better_numerical_stability = True
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(32, 16, 16, 16, generator=generator)
    labels = torch.randint(10, (32,), generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def training_cases(peer: Any) -> Iterator[Case]:
    """torch.ao's fused fake quantization is its default; the plain one is what both have.

    So is the stable form, which takes a convolution more; torch.ao's default divides by gamma instead.
    """
    others = [
        (f"torch.ao, {name}", training_step(peer, {"version": number}, stable), 1.0 * NOISE)
        for name, number, stable in (("plain", 0, False), ("fused", 1, False), ("fused, stable form", 1, True))
    ]
    yield Case("a fake-quantized training step", training_step(quantization, {}), tuple(others))


def jax_cases() -> Iterator[Case]:
    """A product of integers in JAX, and the linear layer around it, against a product of floats."""
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=(SIZE, SIZE)).astype(np.float32)) for _ in range(2))
    q = qjax.quantization.quantize_per_tensor(x, 0.03, 128, "quint8")
    weight = qjax.quantization.quantize_per_tensor(w, 0.03, 0, "qint8")
    product = jax.jit(
        lambda a, b: jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
    )
    integer = jax.jit(lambda q, weight: qjax.quantization.linear(q, weight, None, 2.0, 128).values)
    floating = jax.jit(lambda x, w: x @ w.T)
    others = (("float32 in JAX", lambda: floating(x, w).block_until_ready(), 1.0 * NOISE),)
    shape = f"{SIZE} x {SIZE} x {SIZE}"
    yield Case(f"JAX: int8 product {shape}", lambda: product(weight.values, weight.values).block_until_ready(), others)
    yield Case(f"JAX: linear {shape}", lambda: integer(q, weight).block_until_ready(), others)


def weights_cases() -> Iterator[Case]:
    """Weights alone, which a call decodes, against the plainest decoding: a table at the codes, and the product."""
    x, codes = torch.randn(8, SIZE), torch.randint(0, 256, (SIZE, SIZE))
    table, layer = torch.randn(256), nn.Sequential(nn.Linear(SIZE, SIZE)).eval()
    inputs, places, numbers = (jnp.asarray(one.numpy()) for one in (x, codes, table))
    looked_up = jax.jit(lambda x, table, codes: x @ table[codes].T)
    plain = "a lookup"
    for name, limit in WEIGHTS.items():
        text: Any = name  # settings take texts of formats, too
        small = quantization.quantize_model(layer, quantization.QConfig(None, text))  # type: ignore[arg-type]
        eager = plain, lambda: x @ table[codes].T, limit
        yield Case(f"weights in {name}", partial(small, x), (eager,))
        if name in ("e4m3fn", "mxfp4", "e3m2fn"):
            yield Case(f"weights in {name}, compiled", partial(torch.compile(small), x), (eager,))
        own = nnx.Sequential(nnx.Linear(SIZE, SIZE, rngs=nnx.Rngs(0)))
        twin = qjax.nnx.quantize_model(own, qjax.quantization.QConfig(None, text))
        definition, state = nnx.split(twin)
        jitted = jax.jit(lambda state, x, definition=definition: nnx.merge(definition, state)(x))
        yield Case(
            f"JAX: weights in {name}",
            lambda twin=twin: twin(inputs).block_until_ready(),
            ((f"{plain} in JAX", lambda: (inputs @ numbers[places].T).block_until_ready(), limit),),
        )
        yield Case(
            f"JAX: weights in {name}, jit",
            lambda jitted=jitted, state=state: jitted(state, inputs).block_until_ready(),
            ((f"{plain} in JAX, jit", lambda: looked_up(inputs, numbers, places).block_until_ready(), limit),),
        )


def measure(seconds: float, log: Console) -> list[Row]:
    """All rows; each is also written to `log`."""
    rows = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        import torch.ao.quantization as peer

        for make in (
            partial(layer_cases, peer),
            partial(network_cases, peer),
            partial(training_cases, peer),
            jax_cases,
            weights_cases,
        ):
            for what, call, others in make():
                with torch.set_grad_enabled("training" in what):
                    ours, *timings = by_turns([call, *(other for _, other, _ in others)], clock_for("cpu"), seconds)
                for (against, _, limit), theirs in zip(others, timings, strict=True):
                    row = Row(what, against, ours.median, theirs.median, ours.fastest, theirs.fastest, limit)
                    log.print(f"{what}, {against}: {row.ratio:.2f}", soft_wrap=True)
                    rows.append(row)
    return rows


def table(rows: list[Row]) -> Table:
    made = Table(box=SIMPLE, title="Layers in integers")
    for column in ("layer", "against"):
        made.add_column(column, no_wrap=True)
    for column in ("a call, ms", "the other, ms", "ratio", "limit", ""):
        made.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        numbers = f"{row.seconds * 1e3:.3f}", f"{row.baseline * 1e3:.3f}", f"{row.ratio:.2f}", f"{row.limit:.2f}"
        made.add_row(row.what, row.against, *numbers, "met" if row.met else "MISSED", style=None if row.met else "red")
    return made


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time layers in integers against torch.ao's and float32.")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row, five turns at least")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--engine", choices=torch.backends.quantized.supported_engines, help="of torch.ao's layers")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.engine:
        torch.backends.quantized.engine = options.engine
    console, log = (Console(stderr=stderr, highlight=False) for stderr in (False, True))
    console.width = max(console.width, WIDTH)
    facts = {"versions": versions(), "machine": machine("cpu") | {"engine": torch.backends.quantized.engine}}
    for name, values in facts.items():
        console.print(f"{name}: " + ", ".join(f"{what} {value}" for what, value in values.items()), soft_wrap=True)
    rows = measure(options.seconds, log)
    console.print(table(rows))
    missed = sum(not row.met for row in rows)
    if options.json:
        records = {"rows": [row.record() for row in rows], "limits": {"checked": len(rows), "missed": missed}}
        write_results(options.json, facts | records)
    console.print(f"{missed} of {len(rows)} limits are missed", style="red" if missed else "green")
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
