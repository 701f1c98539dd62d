"""What the pages say in numbers, from `benchmarks/results`: `<!-- name -->`, a table or sentences, `<!-- end -->`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FIGURES: dict[str, Callable[[], str]] = {}
_PART = re.compile(r"(?<=<!-- )(?!end )([\w-]+)( -->\n)(.*?)(?=<!-- end -->)", re.S)

Record = dict[str, Any]


def figure(function: Callable[[], str]) -> Callable[[], str]:
    """Its text stands on pages between comments that have its name."""
    FIGURES[function.__name__.replace("_", "-")] = function
    return function


def with_figures(page: str) -> str:
    """A page whose figures are those of the result files."""
    return _PART.sub(lambda part: f"{part[1]}{part[2]}\n{FIGURES[part[1]]()}\n\n", page)


def results(name: str) -> Record:
    return json.loads((RESULTS / f"{name}.json").read_text())


def link(name: str, text: str = "all rows") -> str:
    return f"[{text}](../benchmarks/results/{name}.json)"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (heading, ["---"] * len(heading), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def span(values: Iterable[float], digits: int = 2) -> str:
    """The least and the greatest of numbers."""
    found = sorted(values)
    least, greatest = (f"{value:.{digits}f}" for value in (found[0], found[-1]))
    return least if least == greatest else f"{least} to {greatest}"


def where(record: Record) -> str:
    """The machine and the versions of a result file."""
    machine, versions = record["machine"], record["versions"]
    packages = f"torch {versions['torch'].partition('+')[0]}, jax {versions['jax']}"
    cores = f"{machine['cores']} core{'s' if machine['cores'] > 1 else ''}"
    return f"{cores} of an {machine['cpu']} with {machine['vectors']}, {packages}, commit {versions['commit']}"


@figure
def speed_of_rounding() -> str:
    record = results("speed")
    columns = [(vectors, size) for vectors in ("avx512", "avx2", "jax") for size in (20, 24)]
    found: dict[tuple[str, str], dict[tuple[str, int], str]] = {}
    for row in record["rows"]:
        if row["dtype"] == "float32" and row["operation"] in ("nearest", "stochastic") and row["exponent"] >= 20:
            cells = found.setdefault((row["format"], row["operation"]), {})
            cells[row["vectors"], row["exponent"]] = f"{row['ratio']:.2f}"
    rows = [
        (f"`{text}` {mode}", *(cells[column] for column in columns))
        for mode in ("nearest", "stochastic")
        for (text, other), cells in found.items()
        if mode == other
    ]
    heading = "rounding", "AVX-512, 2^20", "2^24", "AVX2, 2^20", "2^24", "jax jit, 2^20", "2^24"
    limits = record["limits"]
    return (
        f"Measured on {where(record)} ({link('speed')}).\n\n{table(heading, rows)}\n\n"
        f"Of the limits that we set ourselves (`LIMITS` in `benchmarks/speed.py`) {limits['missed']} of "
        f"{limits['checked']} are missed; the program prints which."
    )


@figure
def speed_of_the_rest() -> str:
    record = results("speed")
    rows = [row for row in record["rows"] if row["vectors"] != "jax"]
    half = [row for row in rows if row["dtype"].endswith("16") and row["exponent"] == 24]
    codes = [row for row in rows if row["operation"] in ("encode", "decode") and row["exponent"] == 24]
    integers = [row for row in rows if row["operation"] in ("quantize", "dequantize") and row["exponent"] == 24]
    small = [row for row in rows if row["exponent"] == 6 and row["operation"] == "nearest"]
    copies = {size: [row["baseline"] / 2**size * 1e9 for row in _nearest(rows, size)] for size in (20, 24)}
    lines = [
        ("a copy of 2^20 float32 numbers", f"{span(copies[20])} ns an element"),
        ("a copy of 2^24 float32 numbers", f"{span(copies[24])} ns an element"),
        ("a call on 64 elements, to nearest", f"{span((row['seconds'] * 1e6 for row in small), 1)} µs"),
        ("blocks of 16-bit floats, 2^24 elements", f"{span((row['ratio'] for row in half), 1)} copies"),
        ("`encode` and `decode`, 2^24 elements", f"{span((row['ratio'] for row in codes), 1)} copies"),
        ("`QTensor`s, quantize and dequantize, 2^24", f"{span((row['ratio'] for row in integers), 1)} copies"),
    ]
    return table(("what", "AVX-512 and AVX2"), lines)


def _nearest(rows: Iterable[Record], size: int) -> list[Record]:
    return [row for row in rows if (row["operation"], row["dtype"], row["exponent"]) == ("nearest", "float32", size)]


@figure
def startup() -> str:
    wanted = {
        "import qcore after numpy": "`import qcore` adds to `import numpy`",
        "import qtorch after torch": "`import qtorch` adds to `import torch`",
        "import qjax after jax": "`import qjax` adds to `import jax`",
        "first results, cold": "the first nearest and the first stochastic call on a machine, which compile",
        "first results, warm": "the same in a later process, which loads both from disk",
    }
    found = {row["name"]: row["value"] for row in results("speed")["startup"]}
    return table(("what", "seconds"), ((text, f"{found[name]:.3f}") for name, text in wanted.items()))


@figure
def wide_vectors() -> str:
    record = results("speed-xla-512")
    rows = [row for row in record["rows"] if (row["framework"], row["rounding"]) == ("jax", "stochastic")]
    found = span((row["ns_per_element"] for row in rows if row["exponent"] >= 20), 1)
    return (
        "XLA uses half of each vector of these processors. With the other half, by "
        "`XLA_FLAGS=--xla_cpu_prefer_vector_width=512 python -m benchmarks.speed`, stochastic rounding took JAX "
        f"{found} ns an element from 2^20 on, on {where(record)} ({link('speed-xla-512')})."
    )


@figure
def training_steps() -> str:
    record = results("training")
    rows = ((row["program"], row["rounding"], f"{row['ratio']:.2f}") for row in record["rows"])
    return f"Measured on {where(record)} ({link('training')}).\n\n{table(('program', 'rounding', 'times fp32'), rows)}"


@figure
def affine() -> str:
    record = results("affine")

    def kind(row: Record) -> str:
        if not row["what"].endswith("Observer"):
            return "fake quantization"
        return "observers per channel" if "PerChannel" in row["what"] else "observers of whole tensors"

    rows = [(kind(row), row["exponent"], row["ratio"]) for row in record["rows"]]
    cells = (
        (
            name,
            *(span(ratio for other, size, ratio in rows if (name, size) == (other, sized)) for sized in (14, 20, 24)),
        )
        for name in dict.fromkeys(name for name, *_ in rows)
    )
    shown = table(("times torch's own", "2^14 elements", "2^20", "2^24"), cells)
    return f"Measured on {where(record)} ({link('affine')}).\n\n{shown}"


@figure
def instructions() -> str:
    record = results("instructions")
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for row in record["rows"]:
        sums = found.setdefault((row["format"], row["operation"], row["dtype"]), {})
        total = sums.setdefault(row["vectors"], [0.0, 0.0])
        sums[row["vectors"]] = [total[0] + row["each"], total[1] + row["nanoseconds"]]
    rows = (
        (
            f"`{text}` {operation}{'' if dtype == 'float32' else f', {dtype}'}",
            *(f"{value:.2f}" for vectors in ("avx512", "avx2") for value in sums[vectors]),
        )
        for (text, operation, dtype), sums in found.items()
        if text in _INSTRUCTIVE[operation] and (dtype == "float32" or text in _INSTRUCTIVE[operation][-3:])
    )
    return table(("operation", "AVX-512: instructions", "ns", "AVX2: instructions", "ns"), rows)


_INSTRUCTIVE = {
    "nearest": (
        *("float(5,2)", "e4m3fnuz", "e8m0fnu", "fixed(8,4,wrap=True)", "posit16"),
        *("block(8,dim=-1)", "mxfp8_e4m3", "nvfp4"),
    ),
    "stochastic": ("float(5,2)",),
    "encode": ("e4m3fn", "mxfp8_e4m3", "nvfp4"),
    "decode": ("e4m3fn", "uint8", "mxfp8_e4m3", "nvfp4"),
}


@figure
def private_parts() -> str:
    record = results("internals")
    rows = ((f"`{row['part']}`", row["call"], f"{row['worth']:.2g}") for row in record["rows"])
    return (
        f"Measured with one thread on {where(record)} ({link('internals')}); medians of calls that took turns.\n\n"
        + table(("private part", "call", "times as long without it"), rows)
    )


@figure
def accuracy() -> str:
    record = results("accuracy")
    rows = (
        (row["framework"], row["images"], str(row["epochs"]), *(_mean(row[name]) for name in ("fp32", "low")))
        for row in record["rows"]
    )
    shown = table(("framework", "images", "epochs", "fp32, % of test images", "low precision"), rows)
    return (
        f"{shown}\n\nMeans of {len(record['rows'][0]['low'])} seeds, by `python -m benchmarks.training --accuracy` "
        f"({link('accuracy', 'all runs')})."
    )


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.1f}"


@figure
def consistency() -> str:
    record = results("consistency")
    cases = record["cases"]
    compared = [case for case in cases if case["backend"] != "numpy"]
    rows = []
    for backend in dict.fromkeys(case["backend"] for case in cases):
        of = [case for case in cases if case["backend"] == backend]
        differing = f"{sum(case['differing'] for case in of):,}" if backend != "numpy" else "the reference"
        rows.append((backend, str(len(of)), f"{sum(case['inputs'] for case in of):,}", differing))
    accumulators = {case["format"] for case in cases if case["format"].startswith("accumulator")}
    formats = len({case["format"] for case in cases}) - len(accumulators)
    differing, inputs = (sum(case[name] for case in compared) for name in ("differing", "inputs"))
    return (
        f"{differing:,} of {inputs:,} results differ: {formats} formats and {len(accumulators)} accumulators, "
        f"in {record['seconds'] / 60:.1f} minutes on {where(record)} ({link('consistency', 'all cases')}).\n\n"
        + table(("backend", "pairs of format and mode", "results", "differ"), rows)
    )


@figure
def sweeps() -> str:
    found = [
        (case["format"], case["rounding"], case["backend"], case["inputs"], case["differing"])
        for path in sorted(RESULTS.glob("exhaustive-*.json"))
        for outer in json.loads(path.read_text())["cases"]
        for case in outer.get("backends", [outer])
    ]
    texts = dict.fromkeys(text for text, *_ in found)
    rows = (
        (
            f"`{text}`",
            ", ".join(dict.fromkeys(mode for other, mode, *_ in found if other == text)),
            f"{sum(differing for other, _, _, _, differing in found if other == text):,}",
        )
        for text in texts
    )
    compared = sum(inputs for _, _, backend, inputs, _ in found if backend != "numpy")
    differing = sum(number for *_, number in found)
    return (
        f"{differing:,} of {compared:,} results differ from NumPy's "
        f"({link('exhaustive-named', 'results')}, {link('exhaustive-named-rest', 'more')}; each with its commit)\n\n"
        + table(("format, all 2^32 inputs", "modes", "differ"), rows)
    )


@figure
def choices() -> str:
    cells = []
    for framework, name in (("torch", "PyTorch"), ("jax", "JAX")):
        rows = results(f"choices-{framework}")["rows"]
        for model in dict.fromkeys(row["model"] for row in rows):
            of = [row for row in rows if row["model"] == model]
            for uniform in (row for row in of if row["kind"] == "uniform"):
                front = [row for row in of if row["kind"] == "front" and row["bits"] <= uniform["bits"]]
                best = min(front, key=lambda row: row["loss"])
                numbers = (f"{one[name]:.3f}" for one in (uniform, best) for name in ("bits", "loss", "test"))
                text = next(iter(uniform["formats"].values())).removeprefix("scaled(").partition(",{")[0]
                cells.append((f"{MODELS[model]}, {name}", f"`{text}`", *numbers))
    heading = "model", "one format", "bits", "loss", "on other data", "chosen: bits", "loss", "on other data"
    return (
        f"{table(heading, cells)}\n\nEach format has one power of two for a tensor. From {link('choices-torch')} and "
        f"{link('choices-jax', 'of JAX')}."
    )


MODELS = {"mlp": "MLP", "preresnet20": "PreResNet20", "gpt": "GPT, two blocks"}
ARITHMETIC = {"float32": "float32", "fp8": "FP8", "mxfp4": "MXFP4, stochastic"}


def _trained() -> list[tuple[str, str, list[Record]]]:
    """Each model in each arithmetic, with its runs."""
    rows = results("same_training")["runs"]
    pairs = [(model, kind) for model in MODELS for kind in ARITHMETIC]
    found = [(*pair, [row for row in rows if (row["model"], row["arithmetic"]) == pair]) for pair in pairs]
    return [one for one in found if one[2]]


def _hash(runs: Sequence[Record], name: str = "weights") -> str:
    """The last hash of the longest runs; it must be that of all."""
    most = max(row["steps"] for row in runs)
    (found,) = {row[name][-1] for row in runs if row["steps"] == most}
    return found


@figure
def same_weights() -> str:
    rows = []
    for model, kind, runs in _trained():
        most = max(row["steps"] for row in runs)
        whole = [row for row in runs if row["steps"] == most]
        rows.append((MODELS[model], ARITHMETIC[kind], f"{most:,}", str(len(whole)), f"`{_hash(runs)[:16]}`"))
    heading = "model", "products", "steps", "programs", "SHA-256 of all weights"
    return table(heading, rows)


@figure
def same_training_programs() -> str:
    rows = []
    for model, kind, runs in _trained():
        done = "; ".join(f"{row['program']}: {row['steps']:,}" for row in runs)
        rows.append((MODELS[model], ARITHMETIC[kind], done, f"`{_hash(runs, 'intermediates')[:16]}`"))
    record = results("same_training")
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("numpy", "torch", "jax"))
    shown = table(("model", "products", "programs and their steps", "losses, logits, gradients"), rows)
    return f"With {versions}, on an {record['machine']['cpu']} ({link('same_training', 'all hashes')}).\n\n{shown}"


@figure
def hard_inputs() -> str:
    rows = json.loads((ROOT / "qcore" / "numerics" / "hard_inputs.json").read_text())
    cells = (
        (f"`{name}`", f"{row['sixteenths']} of 16", str(len(row["hard"])), str(len(row["defined"])))
        for name, row in rows.items()
    )
    return table(("function", "sixteenths of all inputs searched", "hard inputs", "not the nearest"), cells)
