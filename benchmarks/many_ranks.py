"""What the sum over N ranks does to the gradients and the loss of a small GPT whose global batch stays the same.

Usage:
    python -m benchmarks.many_ranks                      minutes of one core
    python -m benchmarks.many_ranks --steps 2 --batch 64
    python -m benchmarks.many_ranks --json benchmarks/results/many-ranks.json
    python -m benchmarks.many_ranks --draw docs          draws the picture of the committed results

A rank's gradient is the float32 mean over its part of the batch. One process gives those of all ranks to a `Reducer`
for each law, and compares the mean with the exact one, in float64: at the first step, and after the last step of
training with float32 sums. Then laws train from the same first weights on the same batches, with Adam; and by DiLoCo
(Douillard et al., "DiLoCo", 2023), where each rank trains alone for some steps, and a law averages how far they came.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.support.arguments import count_of, output_file
from benchmarks.support.results import write_results
from benchmarks.support.timing import machine, versions
from benchmarks.training_models.sizes import CONTEXT
from benchmarks.training_models.torch_models import GPT
from examples.text import LETTERS, batches, load
from qcore.pictures import draw_curves, in_two_widths, picture
from qtorch.distributed import Collective, Reducer, WireScale

FILE, PICTURE = Path(__file__).parent / "results" / "many-ranks.json", "many-ranks.svg"
RANKS = 8, 128, 1024, 4096, 16384
BATCH, STEPS, RATE = 16384, 40, 1e-2
TOGETHER = 512  # texts whose gradients are computed at once
ROWS = 64  # numbers with a scale of their own, in torchft's law
_FLOAT32 = "accumulator(float32,chunk=1)"
LAWS: dict[str, str | Collective] = {
    "float32 ring": "nccl.ring.fp32.avg",
    "bf16 ring": "nccl.ring.bf16.avg",
    "bf16 tree": "nccl.tree.bf16.avg",
    "bf16 wire, float32 sum": "megatron.avg",
    "FP8 wire, torchft": "torchft.avg",
    "E3M0 wire, float32 sum": Collective("float(3,0)", "ascending", _FLOAT32, WireScale("tensor"), "after"),
}
RUNS = (
    ("float32 ring", 8),
    ("bf16 ring", 1024),
    ("bf16 ring", 16384),
    ("bf16 tree", 16384),
    ("FP8 wire, torchft", 1024),
)
ALONE, OUTER = 4, {"lr": 0.7, "momentum": 0.9, "nesterov": True}  # of DiLoCo: steps of a rank, and the step of all
DILOCO = "float32 ring", "E3M0 wire, float32 sum"
DILOCO_RANKS = 1024
Weights = dict[str, torch.Tensor]


class Compared(NamedTuple):
    """A mean gradient beside the exact one: of a layer, or of all."""

    step: int
    ranks: int
    law: str
    layer: str
    norm: float  # of the mean, divided by the exact one's
    cosine: float


def rank_gradients(
    model: GPT, weights: Weights, texts: tuple[torch.Tensor, torch.Tensor], ranks: int, own: bool = False
) -> Iterator[Any]:
    """The gradient of each rank as one vector, and the loss of some ranks, in the ranks' order.

    All ranks have the same weights, unless `own` says that they are stacks of each rank's own.
    """

    def loss(weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Any:
        found = F.cross_entropy(functional_call(model, weights, (x,)).flatten(0, 1), y.flatten())
        return found, found

    each = texts[0].shape[0] // ranks
    of_ranks = vmap(grad(loss, has_aux=True), in_dims=(0 if own else None, 0, 0))
    x, y = [x.reshape(ranks, each, -1) for x in texts]
    for begin in range(0, ranks, size := max(1, TOGETHER // each)):
        some = slice(begin, begin + size)
        mine = {name: weight[some] for name, weight in weights.items()} if own else weights
        with sdpa_kernel(SDPBackend.MATH):  # the kernels for CPUs have no vmap, which would run them one by one
            found, losses = of_ranks(mine, x[some], y[some])
        yield torch.cat([one.flatten(1) for one in found.values()], 1), losses


def mean_of(law: str, ranks: int, gradients: Iterator[Any]) -> tuple[torch.Tensor, float]:
    """The mean gradient by a law, and the mean loss."""
    reducer, losses = Reducer(LAWS[law], ranks), []
    for some, loss in gradients:
        losses.append(loss)
        for gradient in some:
            reducer.add(_message(law, gradient))
    return reducer.result().flatten(), torch.cat(losses).mean().item()


def compared(step: int, ranks: int, gradients: Iterator[Any], layers: Mapping[str, torch.Tensor]) -> list[Compared]:
    """All laws' means beside the exact one, by layer."""
    reducers = {law: Reducer(LAWS[law], ranks) for law in LAWS}
    exact = torch.zeros(sum(weight.numel() for weight in layers.values()), dtype=torch.float64)
    for some, _ in gradients:
        exact += some.to(torch.float64).sum(0)
        for law, reducer in reducers.items():
            for gradient in some:
                reducer.add(_message(law, gradient))
    sizes = [weight.numel() for weight in layers.values()]
    found = []
    for law, reducer in reducers.items():
        mean = reducer.result().flatten().to(torch.float64)
        parts = zip(
            ["all", *layers], [mean, *mean.split(sizes)], [exact / ranks, *(exact / ranks).split(sizes)], strict=True
        )
        for layer, one, other in parts:
            norms = one.norm().item(), other.norm().item()
            cosine = (one @ other).item() / max(norms[0] * norms[1], 1e-300)
            found.append(Compared(step, ranks, law, layer, round(norms[0] / norms[1], 5), round(cosine, 5)))
    return found


def trained(model: GPT, first: Weights, law: str, ranks: int, batch: int, steps: int) -> tuple[list[float], Weights]:
    """The loss of each step with a law's means, and the weights after the last one."""
    weights = {name: weight.clone() for name, weight in first.items()}
    optimizer = torch.optim.Adam(list(weights.values()), lr=RATE)
    data, losses = batches(load(), batch, CONTEXT, 0), []
    for _, texts in zip(range(steps), data, strict=False):
        mean, loss = mean_of(law, ranks, rank_gradients(model, weights, _tensors(texts), ranks))
        losses.append(round(loss, 5))
        for weight, gradient in zip(weights.values(), mean.split([w.numel() for w in weights.values()]), strict=True):
            weight.grad = gradient.view_as(weight)
        optimizer.step()
    return losses, weights


def trained_alone(model: GPT, first: Weights, law: str, ranks: int, batch: int, steps: int) -> list[float]:
    """The ranks' mean loss of each step of DiLoCo, whose outer gradients a law averages."""
    shared = torch.cat([weight.flatten() for weight in first.values()])
    own = shared.repeat(ranks, 1)
    parts = own.split([weight.numel() for weight in first.values()], 1)
    weights = {name: part.view(ranks, *first[name].shape) for name, part in zip(first, parts, strict=True)}
    inner = torch.optim.Adam([own], lr=RATE)  # element by element, so it is each rank's own
    outer = torch.optim.SGD([shared], **OUTER)
    data, losses = batches(load(), batch, CONTEXT, 0), []
    for step, texts in zip(range(1, steps + 1), data, strict=False):
        gradients, loss = zip(*rank_gradients(model, weights, _tensors(texts), ranks, own=True), strict=True)
        own.grad = torch.cat(gradients)
        losses.append(round(torch.cat(loss).mean().item(), 5))
        inner.step()
        if step % ALONE == 0:
            reducer = Reducer(LAWS[law], ranks)
            for one in own:
                reducer.add(_message(law, shared - one))
            shared.grad = reducer.result().flatten()
            outer.step()
            own.copy_(shared)
    return losses


def _message(law: str, gradient: torch.Tensor) -> torch.Tensor:
    return gradient.view(-1, ROWS) if "torchft" in law else gradient


def _tensors(texts: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(texts[0]), torch.from_numpy(texts[1])


def measured(batch: int, steps: int) -> tuple[list[Compared], list[dict[str, Any]], list[dict[str, Any]]]:
    """Gradients at the first step and after the last one, and the losses of the runs, then those of DiLoCo's."""
    torch.manual_seed(0)
    model = GPT(len(LETTERS))
    first = {name: weight.detach() for name, weight in model.named_parameters()}
    texts = _tensors(next(batches(load(), batch, CONTEXT, 1)))
    counts = [ranks for ranks in RANKS if ranks <= batch]
    rows: list[Compared] = []
    lines: list[dict[str, Any]] = []
    alone: list[dict[str, Any]] = []

    def compare(step: int, weights: Weights, counts: Sequence[int]) -> None:
        for ranks in counts:
            rows.extend(compared(step, ranks, rank_gradients(model, weights, texts, ranks), weights))
            for row in rows[-len(LAWS) * (len(weights) + 1) :]:
                if row.layer == "all":
                    print(f"step {step}, {ranks} ranks, {row.law}: norm {row.norm}, cosine {row.cosine}", flush=True)

    compare(0, first, counts)
    for law, ranks in RUNS:
        losses, weights = trained(model, first, law, min(ranks, batch), batch, steps)
        lines.append({"law": law, "ranks": min(ranks, batch), "losses": losses})
        print(f"{law}, {min(ranks, batch)} ranks: loss {losses[0]} to {losses[-1]}", flush=True)
        if law == "float32 ring":
            compare(steps, weights, counts[-1:])
    for law in DILOCO:
        losses = trained_alone(model, first, law, ranks := min(DILOCO_RANKS, batch), batch, steps)
        alone.append({"law": law, "ranks": ranks, "losses": losses})
        print(f"DiLoCo, {law}, {ranks} ranks: loss {losses[0]} to {losses[-1]}", flush=True)
    return rows, lines, alone


def draw(record: Mapping[str, Any], path: Path) -> None:
    """The mean gradient beside the exact one by ranks, whole and of the layer that turns most; the loss by step."""
    title = "A small GPT's mean gradient over 8 to 16,384 ranks"
    text = "The norm of the mean by ranks, its cosine with the exact mean in the worst layer, and the loss by step."
    rows = [row for row in record["rows"] if row["step"] == 0 and row["law"] != "bf16 wire, float32 sum"]
    with picture(path, 8.8, title, text) as figure:
        whole, worst, loss, alone = figure.subplots(4, 1)
        for axes in (whole, worst):
            axes.set_xscale("log", base=2)
        whole.set(title="whole gradient", ylabel="norm / exact norm")
        worst.set(title="layer that turns most", xlabel="ranks", ylabel="cosine with exact")
        draw_curves(whole, _curves(row | {"y": row["norm"]} for row in rows if row["layer"] == "all"))
        draw_curves(worst, _curves(row | {"y": row["cosine"]} for row in rows if row["layer"] != "all"))
        loss.set(title="training with Adam", ylabel="loss")
        draw_curves(loss, {_name(line): [*enumerate(line["losses"])] for line in record["lines"]})
        alone.set(title="DiLoCo", xlabel="step", ylabel="loss")
        draw_curves(alone, {_name(line): [*enumerate(line["losses"])] for line in record["diloco"]})


def _curves(rows: Iterable[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """The least y of each law and number of ranks."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        points = found.setdefault(row["law"], {})
        points[row["ranks"]] = min(row["y"], points.get(row["ranks"], row["y"]))
    return {law: [*points.items()] for law, points in found.items()}


def _name(line: Mapping[str, Any]) -> str:
    return f"{line['law']}, {line['ranks']:,}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.many_ranks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--batch", metavar="N", type=count_of("N", 1), default=BATCH, help="texts of a step, a power of two"
    )
    parser.add_argument("--steps", metavar="N", type=count_of("N", 1), default=STEPS, help="of training")
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write versions, machine and rows there")
    parser.add_argument("--draw", metavar="FOLDER", type=Path, help="only draw the committed results there")
    options = parser.parse_args(argv)
    if options.draw:
        in_two_widths(partial(draw, json.loads(FILE.read_text(encoding="utf-8"))), options.draw / PICTURE)
        return 0
    torch.set_num_threads(1)
    rows, lines, alone = measured(options.batch, options.steps)
    settings = {"batch": options.batch, "context": CONTEXT, "steps": options.steps, "rate": RATE, "alone": ALONE}
    record = {
        "versions": versions(),
        "machine": machine("cpu"),
        "seconds": round(process_time(), 1),
        "settings": settings,
        "rows": [row._asdict() for row in rows],
        "lines": lines,
        "diloco": alone,
    }
    if options.json:
        write_results(options.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
