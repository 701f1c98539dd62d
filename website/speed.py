"""Figures of time: every public function here is one."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.support.limits import kind_of
from website.records import Record, link, results, span, table, where

VECTORS = {"avx512": "AVX-512", "avx2": "AVX2", "jax": "jax jit"}


def speed_in_short() -> str:
    """The least and the greatest ratio of each kind of format, for tensors that lie in memory."""
    kinds = {
        "element": "single numbers to nearest, in copies",
        "block": "blocks to nearest, in copies",
        "nvfp4": "NVFP4 to nearest, in copies",
        "stochastic": "stochastically, times `rand_like` (JAX: times PyTorch's kernel)",
    }
    found: dict[tuple[str, str], list[float]] = {}
    for row in results("speed")["rows"]:
        if (row["dtype"], row["exponent"]) == ("float32", 24) and row["operation"] in ("nearest", "stochastic"):
            kind = kind_of(row["operation"], row["format"])
            found.setdefault((kind, row["vectors"]), []).append(row["ratio"])
    rows = ((text, *(span(found[kind, name], 1) for name in VECTORS)) for kind, text in kinds.items())
    return table(("2^24 float32 numbers", *(f"PyTorch, {VECTORS[name]}" for name in ("avx512", "avx2")), "JAX"), rows)


def speed_of_rounding() -> str:
    record = results("speed")
    limits = record["limits"]
    return (
        f"{_measured(record, 'speed')}\n\n{_copies_by_format(record)}\n\n"
        f"Of the limits that we set ourselves (`LIMITS` in `benchmarks/speed.py`) {limits['missed']} of "
        f"{limits['checked']} are missed; [what they are made of](speed-limits.md#missed-limits)."
    )


def _copies_by_format(record: Record) -> str:
    """The ratios of float32 numbers, with columns for the sets of instructions that were measured."""
    measured = {row["vectors"] for row in record["rows"]}
    columns = [(name, size) for name in VECTORS if name in measured for size in (20, 24)]
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
    return table(("rounding", *(f"{VECTORS[name]}, 2^{size}" for name, size in columns)), rows)


def speed_of_tables_and_laws() -> str:
    """Tables, and NVFP4 under one law in calls of the other, by instructions; then JAX's blocks."""
    record = results("formats-speed")
    found: dict[tuple[str, str, int], dict[str, Record]] = {}
    for row in record["rows"]:
        found.setdefault((row["format"], row["operation"], row["exponent"]), {})[row["vectors"]] = row
    columns = [name for name in VECTORS if any(name in cells for cells in found.values())]
    rows = []
    for (text, operation, exponent), cells in found.items():
        limits = {row["limit"] for row in cells.values()} - {None}
        ratios = (f"{cells[name]['ratio']:.2f}" if name in cells else "" for name in columns)
        what = text if " " in text else f"`{text}`"
        what += ", as a multiple of torchao's law" if operation == "te / torchao" else ""
        rows.append((f"{what}, 2^{exponent}", *ratios, " or ".join(f"{limit:g}" for limit in sorted(limits))))
    shown = table(("to nearest", *(VECTORS[name] for name in columns), "what we aim at"), rows)
    limits = record["limits"]
    return (
        f"`python -m benchmarks.formats`, on {where(record)} ({link('formats-speed')}); "
        f"{limits['missed']} of {limits['checked']} limits are missed.\n\n{shown}"
    )


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
    return table(("what", ""), lines)


def _nearest(rows: Iterable[Record], size: int) -> list[Record]:
    return [row for row in rows if (row["operation"], row["dtype"], row["exponent"]) == ("nearest", "float32", size)]


def startup() -> str:
    wanted = {
        "import qcore after numpy": "`import qcore` adds to `import numpy`",
        "import qtorch after torch": "`import qtorch` adds to `import torch`",
        "import qjax after jax": "`import qjax` adds to `import jax`",
        "first results, cold": "the first nearest and the first stochastic call on a machine, which compile",
        "first result of NVFP4, cold": "NVFP4's first call after these, which compiles",
        "first results, warm": "the first two in a later process, which loads them from disk",
    }
    record = results("startup")
    found = {row["name"]: row["value"] for row in record["startup"]}
    lines = ((text, f"{found[name]:.3f}") for name, text in wanted.items())
    measured = f"`python -m benchmarks.speed --only-startup`, on {where(record)} ({link('startup')})."
    return f"{table(('what', 'seconds'), lines)}\n\n{measured}"


def wide_vectors() -> str:
    record = results("speed-xla-512")
    rows = [row for row in record["rows"] if (row["framework"], row["rounding"]) == ("jax", "stochastic")]
    found = span((row["ns_per_element"] for row in rows if row["exponent"] >= 20), 1)
    return (
        "XLA uses half of each vector of these processors. With the other half, by "
        "`XLA_FLAGS=--xla_cpu_prefer_vector_width=512 python -m benchmarks.speed`, stochastic rounding took JAX "
        f"{found} ns an element from 2^20 on, on {where(record)} ({link('speed-xla-512')})."
    )


def training_steps() -> str:
    record = results("training")
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in record["rows"]:
        rows.setdefault((row["program"], row["rounding"]), {})[row["vectors"]] = f"{row['ratio']:.2f}"
    columns = [name for name in VECTORS if any(name in found for found in rows.values())]
    cells = ((*kind, *(found.get(name, "") for name in columns)) for kind, found in rows.items())
    heading = ("program", "rounding", *(VECTORS[name] for name in columns))
    return f"Times fp32, on {where(record)} ({link('training')}).\n\n{table(heading, cells)}"


def fused_programs() -> str:
    """Compiled programs in cache and from memory, and a training step of a network, by set of instructions."""
    record, ways = results("fusion"), ("eager", "call", "loop")
    parts = [f"Times a copy, with one thread, on {where(record)} ({link('fusion')})."]
    for vectors in dict.fromkeys(row["vectors"] for row in record["rows"]):
        found: dict[str, dict[int, Record]] = {}
        for row in record["rows"]:
            if row["vectors"] == vectors:
                found.setdefault(row["program"], {})[row["exponent"]] = row
        sizes = [min(next(iter(found.values()))), max(next(iter(found.values())))]
        heading = [f"{way}, 2^{size}" for size in sizes for way in ways]
        rows = []
        for program, by_size in found.items():
            last = by_size[sizes[1]]
            times = [f"{by_size[size][way]:.2f}" for size in sizes for way in ways]
            rows.append((program, *times, last["chosen"], *(f"{last[f'compile {way}']:.1f}" for way in ways[1:])))
        columns = ("program", *heading, "chosen", "s to compile, call", "s, loop")
        parts.append(f"{VECTORS[vectors]}:\n\n{table(columns, rows)}")
    first = {row["vectors"]: row for row in record["network"] if row["step"] == "fp32"}
    names = {"rounded": "rounded", "emptied": "without the law's arithmetic"}
    steps = [
        (
            VECTORS[row["vectors"]],
            names[row["step"]],
            f"{row['seconds'] / first[row['vectors']]['seconds']:.3f}",
            f"{row['compile'] / first[row['vectors']]['compile']:.2f}",
        )
        for row in record["network"]
        if row["step"] in names
    ]
    parts.append(
        "A training step of PreResNet20, all activations and errors rounded to nearest, as multiples of fp32, both "
        f"compiled:\n\n{table(('instructions', 'step', 'time', 'compile time'), steps)}"
    )
    return "\n\n".join(parts)


def fused_loops() -> str:
    """Processors' time in the loops of a compiled training step, as multiples of those of fp32."""
    record = results("fused-loops")
    names = {"fp32": "fp32", "rounded": "rounded to nearest", "emptied": "the same without the law's arithmetic"}
    first = record["loops"][0]["loops"]
    rows = [(names[row["step"]], f"{row['loops'] * 1e3:.1f}", f"{row['loops'] / first:.2f}") for row in record["loops"]]
    shown = table(("step", "ms of all processors", "times fp32"), rows)
    return f"{shown}\n\nWith AVX2, {where(record)} ({link('fused-loops')})."


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
    return f"{_measured(record, 'affine')}\n\n{shown}"


def layers() -> str:
    """Both records have the same rows; the flags of AVX2 do not reach XLA, so JAX's rows stand in the first alone."""
    record, narrow = results("layers"), results("layers-avx2")
    rows = (
        (
            row["what"],
            row["against"],
            f"{row['ratio']:.2f}",
            "" if row["what"].startswith("JAX") else f"{other['ratio']:.2f}",
            f"{row['limit']:g}",
        )
        for row, other in zip(record["rows"], narrow["rows"], strict=True)
    )
    shown = table(("layer", "times that of", record["machine"]["vectors"], "AVX2", "what we aim at"), rows)
    threads = record["machine"]["torch threads"]
    threads = f"{threads} thread{'s' if threads > 1 else ''}"
    links = f"{link('layers')}; {link('layers-avx2', 'with AVX2')}"
    return f"Measured with {threads} of torch on {where(record)} ({links}).\n\n{shown}"


def products() -> str:
    record = results("linalg")
    found: dict[str, dict[str, Record]] = {}
    for row in record["rows"]:
        found.setdefault(row["name"], {})[row["framework"]] = row
    rows = (
        (name, *(f"{of[one]['ratio']:.1f}" for one in ("torch", "jax")), f"{of['torch']['limit'] or '':}")
        for name, of in found.items()
    )
    shown = table(("accumulator or step", "PyTorch", "JAX", "what we aim at"), rows)
    rates = {name: row["gmacs"] for name, row in found["sequential, nearest"].items()}
    return (
        f"Matrices of 512 x 512 on {where(record)} ({link('linalg')}):\n\n{shown}\n\n"
        f"Sequential sums to nearest are {rates['torch']:.1f} billion terms a second in PyTorch, "
        f"{rates['jax']:.1f} in JAX, and {rates['apytypes']:.2f} in APyTypes, which has the same bits (`tests/peers`)."
    )


def same_training_speed() -> str:
    """Steps with defined bits, as multiples of the ordinary one, and the limits that we set ourselves."""
    record = results("same-training-speed")
    models = {"mlp": "MLP", "preresnet20": "PreResNet20", "gpt": "GPT, two blocks"}
    frameworks = list(dict.fromkeys(row["framework"] for row in record["rows"]))
    found = {(row["model"], row["arithmetic"], row["framework"]): row for row in record["rows"]}
    rows = [
        (text, arithmetic, *(f"{found[model, arithmetic, one]['ratio']:.2f}" for one in frameworks), f"{limit:.0f}")
        for model, text in models.items()
        for arithmetic in dict.fromkeys(row["arithmetic"] for row in record["rows"])
        if (limit := found[model, arithmetic, frameworks[0]]["limit"])
    ]
    heading = "model", "products", *frameworks, "what we aim at"
    return f"{table(heading, rows)}\n\n{_measured(record, 'same-training-speed')}"


def elementary_speed() -> str:
    """Functions of 2^24 numbers, as multiples of torch's own."""
    record = results("functions-speed")
    ordered = sorted(record["rows"], key=lambda row: row["ratio"])
    rows = [(f"`{row['function']}`", f"{row['ratio']:.2f}") for row in ordered]
    within, limit = sum(row["ratio"] <= record["limit"] for row in ordered), record["limit"]
    return (
        f"{table(('function', 'times torch'), rows)}\n\n{within} of {len(rows)} are within the {limit:.0f} times that "
        f"we aim at. {_measured(record, 'functions-speed')}"
    )


def _measured(record: Record, name: str) -> str:
    return f"Measured on {where(record)} ({link(name)})."
