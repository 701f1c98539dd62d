"""How fast affine quantization is, against torch's own operations and torch.ao's observers.

Usage:
    python -m benchmarks.affine                        everything, on the CPU
    python -m benchmarks.affine --max-exponent 20 --json affine.json

Each call takes turns with torch's, and medians are compared. Rows slower than torch's are red, and the last line counts
them; the exit status is 0 all the same: a benchmark reports, it does not judge.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.support.results import write_results
from benchmarks.support.timing import Call, by_turns, clock_for, keep_pages, machine, versions
from qtorch import quantization

EXPONENTS = (14, 20, 24)  # of two, in elements
LIMITED = (20, 24)
NOISE = 1.05  # times as long as torch, which two runs of the same call may differ by
CHANNELS = 64
RANGE = (0, 255)
WIDTH = 120  # columns, which the table needs

# An array's shape, and the dimension along which channels lie; None: one scale for all.
LAYOUTS: dict[str, tuple[Callable[[int], tuple[int, ...]], int | None]] = {
    "per tensor": (lambda size: (size,), None),
    "per channel, axis 0 of 2": (lambda size: (CHANNELS, size // CHANNELS), 0),
    "per channel, axis 1 of 2": (lambda size: (size // CHANNELS, CHANNELS), 1),
    "per channel, axis 1 of 4": (lambda size: (size // CHANNELS // 64, CHANNELS, 8, 8), 1),
}
OBSERVERS = {
    "MinMaxObserver": "per tensor",
    "MovingAverageMinMaxObserver": "per tensor",
    "HistogramObserver": "per tensor",
    "PerChannelMinMaxObserver": "per channel, axis 0 of 2",
    "MovingAveragePerChannelMinMaxObserver": "per channel, axis 1 of 4",
    "FakeQuantize": "per tensor",
}


@dataclass(frozen=True)
class Row:
    """One measurement; times are medians in seconds a call, and the fastest."""

    framework: str
    what: str
    layout: str
    exponent: int
    seconds: float
    baseline: float
    fastest: float
    fastest_baseline: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline

    @property
    def met(self) -> bool | None:
        """Whether it is no slower than torch, at the sizes for which that is promised."""
        return self.ratio <= NOISE if self.exponent in LIMITED else None

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"elements": 1 << self.exponent, "ratio": self.ratio, "met": self.met}


@cache
def _input(exponent: int, device: str) -> torch.Tensor:
    return torch.randn(1 << exponent, generator=torch.Generator(device).manual_seed(exponent), device=device)


def torch_calls(what: str, layout: str, exponent: int, device: str) -> tuple[Call, Call]:
    """Ours and torch's."""
    shape, axis = LAYOUTS[layout]
    x = _input(exponent, device).view(shape(1 << exponent))
    if what in OBSERVERS:
        return _observers(what, x, axis)
    if axis is None:
        ours = partial(quantization.fake_quantize_per_tensor_affine, scale=0.02, zero_point=127)
        theirs = partial(torch.fake_quantize_per_tensor_affine, scale=0.02, zero_point=127)
    else:
        scale = torch.linspace(0.01, 0.03, CHANNELS, device=device)
        parameters = {
            "scale": scale,
            "zero_point": torch.arange(CHANNELS, dtype=torch.int32, device=device),
            "axis": axis,
        }
        ours = partial(quantization.fake_quantize_per_channel_affine, **parameters)
        theirs = partial(torch.fake_quantize_per_channel_affine, **parameters)
    ends = {"quant_min": RANGE[0], "quant_max": RANGE[1]}
    if what == "forward":
        return partial(ours, x, **ends), partial(theirs, x, **ends)
    leaf, gradient = x.detach().requires_grad_(), torch.ones_like(x)
    return tuple(partial(_forward_and_backward, partial(call, **ends), leaf, gradient) for call in (ours, theirs))  # type: ignore[return-value]


def _forward_and_backward(call: Callable[..., torch.Tensor], leaf: torch.Tensor, gradient: torch.Tensor) -> None:
    torch.autograd.grad(call(leaf), leaf, gradient)


def _observers(name: str, x: torch.Tensor, axis: int | None) -> tuple[Call, Call]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.ao.quantization as peer

        settings = {} if axis is None else {"ch_axis": axis}
        ours, theirs = (getattr(package, name)(**settings).to(x.device) for package in (quantization, peer))
    return partial(ours, x), partial(theirs, x)


def settings(max_exponent: int) -> Iterator[tuple[str, str, int]]:
    """The table's rows."""
    sizes = [exponent for exponent in EXPONENTS if exponent <= max_exponent]
    for what in ("forward", "forward and backward"):
        for layout in LAYOUTS:
            yield from ((what, layout, exponent) for exponent in sizes)
    for what, layout in OBSERVERS.items():
        yield from ((what, layout, exponent) for exponent in sizes)


def measure(device: str, max_exponent: int, seconds: float, log: Console) -> list[Row]:
    """All rows; each is also written to `log` when it is there."""
    rows = []
    for what, layout, exponent in settings(max_exponent):
        calls = torch_calls(what, layout, exponent, device)
        ours, theirs = by_turns(calls, clock_for(device), seconds)
        row = Row("torch", what, layout, exponent, ours.median, theirs.median, ours.fastest, theirs.fastest)
        log.print(f"{what}, {layout}, 2^{exponent}: {row.ratio:.2f}", soft_wrap=True)
        rows.append(row)
    return rows


def table(device: str, rows: Iterable[Row]) -> Table:
    made = Table(box=SIMPLE, title=f"qtorch.quantization on {device}, float32, against torch's own")
    for column in ("what", "parameters"):
        made.add_column(column, no_wrap=True)
    for column in ("elements", "a call, ms", "torch, ms", "ratio"):
        made.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        times = f"{row.seconds * 1e3:.3f}", f"{row.baseline * 1e3:.3f}", f"{row.ratio:.2f}"
        made.add_row(row.what, row.layout, f"2^{row.exponent}", *times, style="red" if row.met is False else None)
    return made


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time affine quantization against torch's own.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--max-exponent", type=int, choices=EXPONENTS, default=24, help="2^this elements at most")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row, five turns at least")
    parser.add_argument("--json", metavar="FILE", help="write versions, machine and rows there")
    options = parser.parse_args(argv)
    console, log = (Console(stderr=stderr, highlight=False) for stderr in (False, True))
    console.width = max(console.width, WIDTH)
    facts = {"versions": versions(), "machine": machine(options.device) | {"device": options.device}}
    for name, values in facts.items():
        console.print(f"{name}: " + ", ".join(f"{what} {value}" for what, value in values.items()), soft_wrap=True)
    rows = measure(options.device, options.max_exponent, options.seconds, log)
    console.print(table(options.device, rows))
    limited, missed = (sum(row.met in marks for row in rows) for marks in ((True, False), (False,)))
    if options.json:
        records = {"rows": [row.record() for row in rows], "limits": {"checked": limited, "missed": missed}}
        write_results(options.json, facts | records)
    console.print(f"{missed} of {limited} are slower than torch", style="red" if missed else "green")
    return 0


if __name__ == "__main__":
    keep_pages()
    sys.exit(main())
