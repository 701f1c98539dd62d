"""Figures of time: every public function here is one."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.formats import limits_of
from benchmarks.support.limits import BOUNDS, LARGE, SMALL, kind_of
from qcore.linalg.designs import DESIGNS
from website.records import RESULTS, Record, link, results, span, table, where

VECTORS = {"avx512": "AVX-512", "avx2": "AVX2", "jax": "jax jit"}


def cost_of_quantizing() -> str:
    """What each kind costs in tensors that lie in memory, what bounds it, and what to do."""
    rows = results("speed")["rows"]
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if (row["dtype"], row["exponent"]) == ("float32", LARGE) and row["operation"] in ("nearest", "stochastic"):
            found.setdefault((kind_of(row["operation"], row["format"]), row["vectors"]), []).append(row["ratio"])
    lines = [
        (what, "a copy", *(span(found[kind, name], 1) for name in VECTORS), BOUNDS[kind, LARGE].by, advice)
        for kind, what, advice in (
            ("element", "floats, fixed point, posits to nearest", "nothing: compiled programs fuse it"),
            ("block", "blocks to nearest", "lay blocks along the last axis"),
            ("nvfp4", "NVFP4 to nearest", "in JAX, round once and keep the result"),
        )
    ]
    random = [span(found["stochastic", name], 1) for name in VECTORS]
    words = "`rand_like`; in JAX PyTorch's kernel"
    lines.append(("stochastically", words, *random, "instructions", "round so where it matters: gradients, updates"))
    lines += [_of_others(), _of_calls(rows), *_of_steps(), *_of_products_in_short()]
    heading = ("what", "times", *VECTORS.values(), "bounded by", "what to do")
    return table(heading, lines)


def _of_others() -> tuple[str, ...]:
    """Formats whose law PyTorch runs operation by operation."""
    rows = [row for row in results("formats-speed")["rows"] if row["format"] in BY_OPERATIONS]
    ratios = (span((row["ratio"] for row in rows if row["vectors"] == name), 0) for name in VECTORS)
    names = " and ".join(f"`{text}`" for text in BY_OPERATIONS)
    return names, "a copy", *ratios, "calls", "use JAX, or few such tensors: PyTorch has no kernel for them"


BY_OPERATIONS = "nvfp4(four_over_six=mae)", "mx9"


def _of_calls(rows: Iterable[Record]) -> tuple[str, ...]:
    small = [row for row in rows if row["exponent"] == SMALL and row["operation"] == "nearest"]
    times = {row["vectors"]: f"{row['ratio']:.1f}" for row in small}
    cells = (times.get(name, "") for name in VECTORS)
    return "a call on 64 numbers", "a copy", *cells, "calls", "compile the model, or join small tensors"


def _of_steps() -> list[tuple[str, ...]]:
    """Training steps; the fastest way in each column."""
    found: dict[tuple[str, str], float] = {}
    for row in results("training")["rows"]:
        if row["program"] != "OptimLP.step" and row["rounding"] != "copied":
            key = row["rounding"], row["vectors"]
            found[key] = min(found.get(key, row["ratio"]), row["ratio"])
    return [
        (
            f"a training step, all rounded {text}",
            "fp32",
            *(f"{found[mode, name]:.2f}" if (mode, name) in found else "" for name in VECTORS),
            by,
            advice,
        )
        for mode, text, by, advice in (
            ("nearest", "to nearest", "memory", "compile it"),
            ("stochastic", "stochastically", "instructions", "round forward to nearest, gradients stochastically"),
        )
    ]


def _of_products_in_short() -> list[tuple[str, ...]]:
    """Products; those of XLA and of AVX-512 alone were measured."""
    found = _of_products(results("linalg"))
    kinds = [
        ([name], f"a product, {name}", advice)
        for name, advice in (
            ("exact", "the default: one rounding at the end"),
            ("chunks of 64, nearest", "use this for narrow accumulators"),
            ("sequential, nearest", "use chunks if your hardware has them"),
            ("sequential, stochastic, 24 bits", "give `random_bits=14` or fewer"),
            ("pairs of 4", "use PyTorch on a CPU"),
        )
    ]
    machines = [name for name in found if name in DESIGNS]
    if machines:
        kinds.append((machines, "a product [of a chip](machines.md#what-it-costs)", "use PyTorch on a CPU"))
    return [
        (
            what,
            "float32",
            span((found[name]["torch"]["ratio"] for name in names), 1),
            "",
            span((found[name]["jax"]["ratio"] for name in names), 1),
            "instructions",
            advice,
        )
        for names, what, advice in kinds
    ]


def speed_of_rounding() -> str:
    record = results("speed")
    return f"{_measured(record, 'speed')}\n\n{_copies_by_format(record)}"


# Formats without a row to nearest, whose times are close to those of another format; the result file has them.
ALIKE = set("float(8,7) e4m3fnuz e2m1fn dlfloat16 uint8 block(8,dim=0) mxfp4 scaled(e4m3fn,{-1:None})".split())


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
        if mode == other and not (mode == "nearest" and text in ALIKE)
    ]
    return table(("rounding", *(f"{VECTORS[name]}, 2^{size}" for name, size in columns)), rows)


def speed_of_tables_and_laws() -> str:
    """Tables, and NVFP4 under one law in calls of the other, by instructions; then JAX's blocks."""
    record = results("formats-speed")
    found: dict[tuple[str, str], dict[str, Record]] = {}
    for row in record["rows"]:
        if row["exponent"] == LARGE:
            found.setdefault((row["format"], row["operation"]), {})[row["vectors"]] = row
    columns = [name for name in VECTORS if any(name in cells for cells in found.values())]
    rows = []
    for (text, operation), cells in found.items():
        limits = {limits_of(name)[operation, text].get(LARGE) for name in cells} - {None}
        ratios = (f"{cells[name]['ratio']:.2f}" if name in cells else "" for name in columns)
        what = text if " " in text else f"`{text}`"
        what += ", as a multiple of torchao's law" if operation == "te / torchao" else ""
        rows.append((what, *ratios, " or ".join(f"{limit:g}" for limit in sorted(filter(None, limits)))))
    shown = table(("to nearest", *(VECTORS[name] for name in columns), "limit"), rows)
    return f"`python -m benchmarks.formats`, on {where(record)} ({link('formats-speed')}).\n\n{shown}"


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


def training_steps() -> str:
    record = results("training")
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in record["rows"]:
        rows.setdefault((row["program"], row["rounding"]), {})[row["vectors"]] = f"{row['ratio']:.2f}"
    columns = [name for name in VECTORS if any(name in found for found in rows.values())]
    cells = ((*kind, *(found.get(name, "") for name in columns)) for kind, found in rows.items())
    heading = ("program", "rounding", *(VECTORS[name] for name in columns))
    return f"Times fp32, on {where(record)} ({link('training')}).\n\n{table(heading, cells)}"


def compile_time() -> str:
    """What XLA takes to compile a step with recipes."""
    record = results("compile-time")
    columns = ("seconds", "ratio", "traced")
    rows = [
        (
            "none: high precision" if row["recipe"] == "wide" else row["recipe"],
            *(f"{row[column]:.1f}" for column in columns),
        )
        for row in record["rows"]
    ]
    heading = ("recipe", "s to compile", "times high precision", "s to trace")
    return f"On {where(record)} ({link('compile-time')}).\n\n{table(heading, rows)}"


def fused_programs() -> str:
    """Compiled programs on tensors that lie in memory, as the library chooses."""
    record = results("fusion")
    largest = max(row["exponent"] for row in record["rows"])
    found: dict[str, dict[str, Record]] = {}
    for row in record["rows"]:
        if row["exponent"] == largest and not row["program"].endswith(" alone"):
            found.setdefault(row["program"], {})[row["vectors"]] = row
    columns = [name for name in VECTORS if name in next(iter(found.values()))]
    rows = (
        (
            program,
            *(f"{of[name][way]:.2f}" for name in columns for way in ("eager", of[name]["chosen"])),
            of[columns[0]]["chosen"],
            f"{max(of[name]['compile ' + of[name]['chosen']] for name in columns):.1f}",
        )
        for program, of in found.items()
    )
    heading = [f"{VECTORS[name]}, {way}" for name in columns for way in ("eager", "compiled")]
    measured = f"Times a copy of 2^{largest} numbers, with one thread, on {where(record)} ({link('fusion')})."
    return f"{measured}\n\n{table(('program', *heading, 'as a', 's to compile'), rows)}"


def fused_loops() -> str:
    """Processors' time in the loops of a compiled training step, as multiples of the time of fp32."""
    record = results("fused-loops")
    times = {row["step"]: row["loops"] for row in record["loops"]}
    rounded, emptied = (times[name] / times["fp32"] for name in ("rounded", "emptied"))
    return (
        f"Loops of the rounded step take {rounded:.2f} times as long as loops in fp32, and {emptied:.2f} times without "
        f"the law's arithmetic, with AVX2, {where(record)} ({link('fused-loops')})."
    )


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


def taken_out() -> str:
    """What files of quantized models cost in onnxruntime, and how near the fast ones are."""
    record = results("taken_out")
    rows = (
        (
            row["model"],
            *(f"{row[name] / row['floats']:.2f}" for name in ("exact", "near", "theirs")),
            f"{row['decibels']:.1f} / {row['decibels_of_theirs']:.1f}",
            "" if row["differing"] is None else f"{row['differing']:.2%}",
        )
        for row in record["rows"]
    )
    head = (
        "times the file of floats",
        "exact",
        "`exact=False`",
        "onnxruntime's quantizer",
        "dB, ours / theirs",
        "differ",
    )
    shown, version = table(head, rows), record["versions"]["onnxruntime"]
    return f"onnxruntime {version}, one thread, {where(record)} ({link('taken_out')}):\n\n{shown}"


def products() -> str:
    record = results("linalg")
    found = _of_products(record)
    rows = (
        (name, *(f"{of[one]['ratio']:.1f}" for one in ("torch", "jax")), _limits(of))
        for name, of in found.items()
        if name not in DESIGNS
    )
    shown = table(("accumulator or step", "PyTorch", "JAX", "what we aim at"), rows)
    rates = {name: row["gmacs"] for name, row in found["sequential, nearest"].items()}
    return (
        f"Matrices of 512 x 512 on {where(record)} ({link('linalg')}):\n\n{shown}\n\n"
        f"Sequential sums to nearest are {rates['torch']:.1f} billion terms a second in PyTorch, "
        f"{rates['jax']:.1f} in JAX, and {rates['apytypes']:.2f} in APyTypes, which has the same bits (`tests/peers`)."
    )


def cost_of_machines() -> str:
    """Products by the instructions of chips."""
    record = results("linalg")
    rows = [
        (f"`{name}`", DESIGNS[name].law, str(DESIGNS[name].step), *(f"{of[one]['ratio']:.0f}" for one in _PACKAGES))
        for name, of in _of_products(record).items()
        if name in DESIGNS
    ]
    if not rows:
        return f"The committed file has no rows of them yet ({link('linalg')})."
    shown = table(("instruction", "law", "terms a step", *_PACKAGES.values()), rows)
    return f"{shown}\n\nMatrices of 512 x 512 on {where(record)} ({link('linalg')})."


_PACKAGES = {"torch": "PyTorch", "jax": "JAX"}


def _of_products(record: Record) -> dict[str, dict[str, Record]]:
    """Rows by name and framework."""
    found: dict[str, dict[str, Record]] = {}
    for row in record["rows"]:
        found.setdefault(row["name"], {})[row["framework"]] = row
    return found


def _limits(of: dict[str, Record]) -> str:
    """One limit, or PyTorch's and JAX's."""
    limits = [of[one]["limit"] for one in _PACKAGES]
    if limits[0] == limits[1]:
        return f"{limits[0] or '':}"
    return ", ".join(f"{text} {limit:g}" for text, limit in zip(_PACKAGES.values(), limits, strict=True) if limit)


def collectives_speed() -> str:
    """What a rank's gradient costs in a sum over ranks, and all ranks."""
    record = results("collectives")
    rows = {(row["framework"], row["collective"], row["dtype"]): row for row in record["rows"]}
    ring = rows["torch", "nccl.ring.bf16", "float32"]
    names = dict.fromkeys(name for _, name, _ in rows)
    shown = table(
        ("copies of the gradient", "PyTorch", "JAX", "NumPy"),
        ((name, *(f"{rows[of, name, 'float32']['copies']:.1f}" for of in ("torch", "jax", "numpy"))) for name in names),
    )
    return (
        f"{shown}\n\nThe bfloat16 ring of {ring['ranks']:,} ranks takes {ring['all_ranks']:.1f} s for gradients of "
        f"{ring['size']:,} float32 numbers in PyTorch, of one core of {where(record)} ({link('collectives')})."
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


def steps_in_codes() -> str:
    """Steps of optimizers whose states are codes, and their bytes, from `benchmarks.optim_step`."""
    record = results("optim-step")
    rows = [
        (
            f"`{row['optimizer']}`{', JAX' if row['package'] == 'jax' else ''}",
            *("" if row[name] is None else f"{row[name]:.2f}" for name in ("state", "peak", "saved")),
            f"{row['ratio']:.1f}",
        )
        for row in record["codes"]
    ]
    shown = table(("optimizer", "state", "beside it in a step", "file", "time"), rows)
    return (
        f"{shown}\n\nBytes a number of one parameter of {record['codes'][0]['numbers']:,}, and a step's time in steps "
        "of torch's fused float32 AdamW, in JAX of optax's. "
        f"It ran on {record['machine']['torch threads']} threads; the load was {record['machine']['load']:g} "
        f"({where(record)}; {link('optim-step')})."
    )


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


def arithmetic_speed() -> str:
    """Operations of formats on 2^24 elements, as multiples of copies of their operands."""
    record = results("arithmetic")
    rows = [
        (row["package"], f"`{row['operation']}`, {row['format']}", f"{row['ratio']:.1f}", _limit_of(row))
        for row in record["rows"]
    ]
    return f"{table(('package', 'operation', 'copies', 'limit'), rows)}\n\n{_measured(record, 'arithmetic')}"


def _limit_of(row: Record) -> str:
    return "" if row["limit"] is None else f"{row['limit']:.0f}"


def _measured(record: Record, name: str) -> str:
    return f"Measured on {where(record)} ({link(name)})."


def engines_speed() -> str:
    """Engines beside float32: the rows with limits, in time and memory; before they were measured the command."""
    if not (RESULTS / "engines.json").exists():
        command = "python -m benchmarks.engines --threads 1 --json benchmarks/results/engines.json"
        return f"`{command}` measures what they cost."
    record = results("engines")
    rows = [
        (row["what"], f"{row['ratio']:.1f}", f"{row['limit']:g}", f"{row['bytes'] / 2**20:.1f}")
        for row in record["rows"]
        if row["limit"]
    ]
    heading = "what", "times float32", "what we aim at", "MiB at the peak"
    return (
        f"{table(heading, rows)}\n\nA pass is 512 tokens of a Llama with 4 layers of width 256, on {record['threads']} "
        f"thread of torch, on {where(record)} ({link('engines')})."
    )
