"""Figures of bits, training and choices: every public function here is one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from qcore import parse
from qcore.law.rounding import MODES
from website.records import (
    ARITHMETIC,
    MODELS,
    OPTIMIZERS,
    RESULTS,
    ROOT,
    Record,
    link,
    results,
    table,
    together,
    trained,
    where,
)

_PACKAGES = {"torch": "PyTorch", "jax": "JAX"}


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


_PEERS = (  # what is compared, distributions, tests
    ("models of matrix instructions of NVIDIA and AMD", "mmasim", "test_mma_sim"),
    ("bytes of GGUF's blocks, written and read", "gguf", "test_gguf"),
    ("NVFP4's codes and scales, MX scale rules, FP4 and FP6", "torchao", "test_blocks"),
    ("scales of MX to the nearest power of two", "mlx", "test_mlx"),
    ("HiF8: all codes, midpoints and random bits", "en-dtypes", "test_en_dtypes"),
    ("NF4, FP4 and nested scales", "bitsandbytes", "test_bitsandbytes"),
    (
        "files of weights (NVFP4, MXFP4, 6 and 8) and of models (W4A16, W8A8, FP8)",
        "compressed-tensors",
        "test_compressed_tensors",
    ),
    ("files of new weights: NVFP4; MXFP4, FP8", "nvidia-modelopt transformers", "test_files_of_models"),
    ("casts to 8 and 16 bits", "ml_dtypes torch jax numpy", "test_casts"),
    ("minifloats, P3109, MX", "gfloat", "test_gfloat"),
    ("fixed point, floats and accumulators", "apytypes", "test_apytypes"),
    ("posits", "softposit", "test_softposit"),
    ("fake quantization, observers", "torch", "test_torch_affine"),
    ("integers of torch's engines for x86", "torch", "test_integer_vectors"),
    ("codes, errors and steps of FlashAdamW", "flashoptim-jax", "test_flashoptim"),
    ("models of narrow numbers in QONNX", "qonnx hls4ml", "test_qonnx"),
)


def outside() -> str:
    """What others measured, defined and wrote, with versions; figures are those of result files."""
    silicon = results("silicon")
    tables = next(row for row in results("published")["rows"] if row["source"].startswith("P3109/Public"))
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split() if "==" in line
    )
    gpus = f"{', '.join(silicon['gpus'])}: {silicon['sums']:,} sums that they computed (doi 10.1145/3830409)"
    rows = [
        (f"**measured** {gpus}", f"{silicon['differing']:,} differ", "`python -m benchmarks.silicon`"),
        (
            "**defined** IEEE P3109's value tables",
            tables["ours"],
            "`python -m benchmarks.published --only p3109 --tables FOLDER`",
        ),
        (
            "**defined** P3109 v4.0's saturation, RISC-V's rounding to odd",
            "by hand",
            "`tests/core/law/test_odd.py`, `tests/core/formats/test_p3109.py`",
        ),
        *(
            (
                f"**written** {what}",
                ", ".join(f"{name} {pins[name]}" for name in names.split()),
                f"`tests/peers/{test}.py`",
            )
            for what, names, test in _PEERS
        ),
        ("**written** QPyTorch's kernels", "qtorch 0.3.0", "`tests/peers/test_qpytorch.py`, where it is installed"),
    ]
    return table(("by others", "result, or version", "shown by"), rows)


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


def sweeps() -> str:
    paths = sorted(RESULTS.glob("exhaustive-*.json"))
    found = [
        (case["format"], case["rounding"], case["backend"], case["inputs"], case["differing"])
        for path in paths
        for outer in json.loads(path.read_text(encoding="utf-8"))["cases"]
        for case in outer.get("backends", [outer])
    ]
    modes: dict[str, set[str]] = {}
    differ: dict[str, int] = {}
    for text, mode, _, _, differing in found:
        text = parse(text.replace(" ", "(", 1).replace(" ", ",") + ")" * (" " in text)).text  # "float 5 2" in old files
        modes.setdefault(text, set()).add(mode)
        differ[text] = differ.get(text, 0) + differing
    rows = together(
        (text, ", ".join(mode for mode in MODES if mode in modes[text]), f"{differ[text]:,}") for text in modes
    )
    compared = sum(inputs for _, _, backend, inputs, _ in found if backend != "numpy")
    differing = sum(number for *_, number in found)
    files = ", ".join(link(path.stem, path.stem.removeprefix("exhaustive-")) for path in paths)
    return f"{differing:,} of {compared:,} results differ from NumPy's. Each file has its commit: {files}.\n\n" + table(
        ("format, all 2^32 inputs", "modes", "differ"), rows
    )


def another_processor() -> str:
    found = []
    for name, unit in (("arm64", "formats and modes in NumPy"), ("arm64-kernels", "calls of qtorch's kernels")):
        record = results(name)
        rows, versions, machine = record["rows"], record["versions"], record["machine"]
        cases, count, differ = (sum(row[column] for row in rows) for column in ("cases", "results", "differ"))
        tools = ", ".join(
            f"{tool} {versions[f'{key} there']}"
            for key, tool in (("numpy", "NumPy"), ("torch", "torch"))
            if f"{key} there" in versions
        )
        found.append(
            f"{differ} of {cases:,} {unit}, with {count:,} results, differ on {machine['system there']}, emulated, "
            f"{tools}, from {machine['system']}, commit {versions['commit']} ({link(name)})."
        )
    return "\n\n".join(found)


def choices() -> str:
    """How often formats chosen by layer are as good as one format for all layers."""
    better = {"loss": 0, "test": 0}
    count = 0
    for framework in ("torch", "jax"):
        rows = results(f"choices-{framework}")["rows"]
        for uniform in (row for row in rows if row["kind"] == "uniform"):
            found = (row for row in rows if row["kind"] == "front" and row["model"] == uniform["model"])
            best = min((row for row in found if row["bits"] <= uniform["bits"]), key=lambda row: row["loss"])
            count += 1
            for name in better:
                better[name] += best[name] <= uniform[name]
    return (
        f"Of {count} comparisons with one format for all layers (two models, five formats, both packages, at most as "
        f"many bits), the chosen formats have no higher loss in {better['loss']}, and on other data in "
        f"{better['test']}. Each format has one power of two for a tensor. From {link('choices-torch')} and "
        f"{link('choices-jax', 'of JAX')}."
    )


def cost_of_watching() -> str:
    record = results("insight")
    ratios: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in record["rows"]:
        kind = _PACKAGES[row["package"]], row["model"], row["rounding"]
        ratios.setdefault(kind, {})[row["every"]] = f"{row['ratio']:.2f}"
    every = sorted({row["every"] for row in record["rows"]})
    heading = (
        "package",
        "model",
        "rounding",
        *(f"one step of {n} watched" if n > 1 else "every step watched" for n in every),
    )
    cells = ((*kind, *(found.get(n, "") for n in every)) for kind, found in ratios.items())
    return (
        f"{table(heading, cells)}\n\nTimes the same steps unwatched, on {where(record)} "
        f"({link('insight')}). What we aim at is at most {record['rows'][0]['limit']:g}."
    )


def _hash(runs: Sequence[Record], name: str = "weights") -> str:
    """The last hash of the longest runs; it must be that of all."""
    most = max(row["steps"] for row in runs)
    (found,) = {row[name][-1] for row in runs if row["steps"] == most}
    return found


def same_weights() -> str:
    rows = []
    for model, kind, runs in trained():
        most = max(row["steps"] for row in runs)
        whole = [row for row in runs if row["steps"] == most]
        rows.append(
            ((MODELS | OPTIMIZERS)[model], ARITHMETIC[kind], f"{most:,}", str(len(whole)), f"`{_hash(runs)[:16]}`")
        )
    heading = "model", "products", "steps", "programs", "SHA-256 of all weights"
    return table(heading, rows)


def same_training_programs() -> str:
    """The steps of each program, which are the same for all products of a model."""
    whole, record = [one for one in trained() if one[0] in MODELS], results("same_training")
    models = list(dict.fromkeys(model for model, _, _ in whole))
    others = (row["program"] for model, _, runs in trained() if model in OPTIMIZERS for row in runs)
    steps: dict[str, dict[str, set[int]]] = {}
    for model, _, runs in whole:
        for row in runs:
            steps.setdefault(row["program"], {}).setdefault(model, set()).add(row["steps"])
    cells = (
        (program, *(" to ".join(f"{n:,}" for n in sorted(found.get(model, ()))) for model in models))
        for program, found in steps.items()
    )
    shown = table(("program, steps of each", *(MODELS[model] for model in models)), cells)
    return (
        f"With {_versions(record)} ({link('same_training', 'all hashes')}):\n\n{shown}\n\n"
        f"The GPT with further optimizers is trained by these programs: {'; '.join(dict.fromkeys(others))}."
    )


_ON_MACHINES = {
    "float32": "float32, sequential sums",
    "bf16": "BF16, exact sums",
    "ampere": "BF16 on Ampere",
    "fp8_scaled": "FP8, exact sums",
    "hopper": "FP8 on Hopper",
    "cdna3": "FP8 on CDNA3, whose formats have other ranges",
    "mxfp8": "MXFP8, exact sums",
    "blackwell": "MXFP8 on Blackwell",
}
_EXACT = {"ampere": "bf16", "hopper": "fp8_scaled", "blackwell": "mxfp8"}


def loss_by_machine() -> str:
    """A GPT trained on machines and with exact sums: the weights' hash, which all programs have, and losses."""
    record = results("machines")
    runs: dict[str, list[Record]] = {}
    for row in record["runs"]:
        runs.setdefault(row["arithmetic"], []).append(row)
    every = record["runs"][0]["every"]
    steps = min(row["steps"] for row in record["runs"])
    parts = [1, (steps // every + 1) // 2, steps // every]
    losses = {kind: of[0]["losses"] for kind, of in runs.items()}
    cells = (
        (
            text,
            f"`{_hash(runs[kind])[:16]}`",
            *(f"{losses[kind][part - 1]:.4f}" for part in parts),
            f"{losses[kind][-1] - losses[_EXACT[kind]][-1]:+.4f}" if kind in _EXACT else "",
        )
        for kind, text in _ON_MACHINES.items()
    )
    of_parts = (f"loss, steps {(part - 1) * every + 1} to {part * every}" for part in parts)
    programs = ", ".join(dict.fromkeys(row["program"] for row in record["runs"]))
    return (
        f"{table(('products', 'SHA-256 of all weights', *of_parts, 'difference to exact sums'), cells)}\n\n"
        f"{len(record['runs'])} runs of {steps} steps, each kind of products by {programs}, with "
        f"{_versions(record)} ({link('machines', 'all hashes and losses')})."
    )


def hard_inputs() -> str:
    rows = json.loads((ROOT / "qcore" / "reproducible" / "hard_inputs.json").read_text(encoding="utf-8"))
    hard, defined = (sum(len(row[name]) for row in rows.values()) for name in ("hard", "defined"))
    exceptions = ", ".join(f"`{name}` {len(row['defined'])}" for name, row in rows.items() if row["defined"])
    searched = sum(row["sixteenths"] for row in rows.values()) // 16
    return (
        f"{len(rows)} functions and slopes, of which {searched} were searched through all inputs, have {hard:,} hard "
        f"inputs. {defined} results are not the nearest: {exceptions}."
    )


def swept_functions() -> str:
    """Sixteenths of all inputs by each backend; equal digests of the same sixteenth are equal bits."""
    record = results("functions")
    rows = record["rows"]
    backends = [name for name in ("numpy", "torch compiled", "jax jit", "torch eager", "jax eager") if _by(rows, name)]
    cells = []
    for name, kind in dict.fromkeys((row["function"], row["kind"]) for row in rows):
        digests = {row["backend"]: row["digests"] for row in rows if (row["function"], row["kind"]) == (name, kind)}
        found = [[one for one in piece if one] for piece in zip(*digests.values(), strict=True)]
        compared = sum(len(piece) > 1 for piece in found)
        differ = sum(len(set(piece)) > 1 for piece in found)
        done = (str(sum(map(bool, digests.get(backend, [])))) for backend in backends)
        cells.append((f"{name}'" if kind == "derivative" else name, *done, str(compared), str(differ)))
    heading = "sixteenths of all inputs (f' is the derivative)", *backends, "compared", "differ"
    return f"{table(heading, together(cells))}\n\nWith {_versions(record)} ({link('functions', 'all digests')})."


def _by(rows: Sequence[Record], backend: str) -> list[Record]:
    return [row for row in rows if row["backend"] == backend]


def _versions(record: Record) -> str:
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("numpy", "torch", "jax"))
    return f"{versions}, on an {record['machine']['cpu']}"


def defined_functions() -> str:
    """Torch's functions by what a converted model does with them, from the registry; needs PyTorch."""
    from qtorch.reproducible.modules import guard  # noqa: F401  # has all rows
    from qtorch.reproducible.modules.registry import DEFINED, RANDOM

    kinds = {
        "computed by a law": DEFINED,
        "refused: random": RANDOM,
    }
    return table(
        ("in a converted model", "functions and methods of torch"), ((kind, _names(f)) for kind, f in kinds.items())
    )


def _names(functions: Iterable[Any]) -> str:
    """Names without those of operators and of changes in place."""
    found = {getattr(one, "__name__", "") for one in functions if getattr(one, "__module__", "") != "_operator"}
    return ", ".join(f"`{name}`" for name in sorted(found) if name and name[0] != "_" and name[-1] != "_")


def reproduced() -> str:
    """Published figures beside ours, from `benchmarks.published`; contrasts that nobody published stand in the file."""
    record = results("published")
    columns = "source", "what", "published", "ours"
    rows = [tuple(row[column] for column in columns) for row in record["rows"] if row["published"] != "not published"]
    above = [None, *(row[0] for row in rows)]  # a source stands once
    said = (("" if row[0] == source else row[0], *row[1:]) for row, source in zip(rows, above, strict=False))
    shown = table(("source", "figure", "published", "here"), said)
    minutes = sum(record["seconds"].values()) / 60
    return f"{shown}\n\n{minutes:.1f} minutes on {where(record)} ({link('published', 'all rows and lines')})."


def quality() -> str:
    """What eight bits cost whole models, beside other quantizers."""
    record = results("quality")
    columns = "ours", "extremes", "fx", "onnxruntime", "per_channel"
    rows = (
        (row["model"], *("" if row[name] is None else f"{row[name]:.1f}" for name in columns)) for row in record["rows"]
    )
    head = ("dB", "`quantize_model`", "`MinMaxObserver`", "torch.ao FX", "onnxruntime", "per channel")
    versions = record["versions"]
    packages = ", ".join(f"{name} {versions[name].partition('+')[0]}" for name in ("torch", "onnxruntime"))
    return f"{table(head, rows)}\n\n{packages}, commit {versions['commit']} ({link('quality')})."


_DILOCO = {"float32 ring": "float32 sums", "E3M0 wire, float32 sum": "E3M0 on the wire"}


def many_ranks() -> str:
    """What sums over ranks leave of a small GPT's gradient, and its loss, from `benchmarks.many_ranks`."""
    record = results("many-ranks")
    first = [row for row in record["rows"] if row["step"] == 0]
    whole = {(row["law"], row["ranks"]): row for row in first if row["layer"] == "all"}
    losses = {(line["law"], line["ranks"]): line["losses"][-1] for line in record["lines"]}
    ring, some, most = "bf16 ring", 1024, 16384
    counts = sorted({ranks for _, ranks in whole})
    rows = (
        (law, *(f"{whole[law, ranks]['norm']:.3f}, {whole[law, ranks]['cosine']:.3f}" for ranks in counts))
        for law in dict.fromkeys(law for law, _ in whole)
    )
    shown = table(("N", *(f"{ranks:,}" for ranks in counts)), rows)
    least = min((row for row in first if (row["law"], row["ranks"]) == (ring, some)), key=lambda row: row["norm"])
    alone = " and ".join(f"{line['losses'][-1]:.2f} with {_DILOCO[line['law']]}" for line in record["diloco"])
    return (
        f"{shown}\n\nOf the gradient of `{least['layer']}` the ring of {some:,} leaves {least['norm']:.2f}, the least "
        f"of all layers. Adam forgives a common factor, and the loss does not show it: after "
        f"{record['settings']['steps']} steps it is {losses['float32 ring', 8]:.2f} with float32 sums, "
        f"{losses[ring, some]:.2f} with the ring of {some:,} and {losses[ring, most]:.2f} with that of {most:,} "
        f"({link('many-ranks', 'all layers')}). In DiLoCo {some:,} ranks train {record['settings']['alone']} steps "
        f"alone, and a law averages how far they came: there it is {alone}."
    )


def orthogonality() -> str:
    """How far Muon's iterations are from orthogonal, from `benchmarks.orthogonality`."""
    record = results("orthogonality")
    found = {(row["coefficients"], row["form"]): row["error"] for row in record["rows"]}
    forms = dict.fromkeys(form for _, form in found)
    rows = (
        (f"`{name}`", *(_error(found[name, form]) for form in forms))
        for name in dict.fromkeys(name for name, _ in found)
    )
    return f"{table(('coefficients', *forms), rows)}\n\nOf one matrix of 64 x 96 ({link('orthogonality')})."


def coded_states() -> str:
    """Losses with optimizer states in codes, from `benchmarks.coded_states`."""
    record = results("coded-states")
    settings, names = record["settings"], {"gpt": "GPT", "preresnet20": "PreResNet20"}
    ends = {(row["optimizer"], row["model"]): row["losses"][-1] for row in record["rows"]}
    rows = (
        (f"`{kind}`" if kind != "float32" else kind, *(f"{ends[kind, model]:.3f}" for model in names))
        for kind in dict.fromkeys(kind for kind, _ in ends)
    )
    shares = {model: (of["coded"] / of["weights"], of["weights"]) for model, of in settings.items() if model in names}
    sizes = " and ".join(
        f"{share:.0%} of {names[model]}'s {count:,} weights" for model, (share, count) in shares.items()
    )
    return (
        f"The mean loss of steps {settings['steps'] - settings['together'] + 1} to {settings['steps']}, from the same "
        f"first weights on the same batches; {sizes} have codes of 8 bits ({link('coded-states')}):\n\n"
        f"{table(('states', *names.values()), rows)}"
    )


def _error(x: float | None) -> str:
    return "grows" if x is None or x > 1000 else f"{x:.2g}"


def rollouts() -> str:
    """What a small GPT learns by GRPO from servers of other formats, from `benchmarks.rollouts`."""
    record = results("rollouts")
    first = {(one["run"], one["framework"]): one["hash"] for one in record["first"]}
    rows = (
        (
            one["run"],
            f"{sum(one['reward'][-20:]) / 20:.2f}",
            f"{sum(one['kl']) / len(one['kl']):.1e}" if any(one["kl"]) else "0",
            f"`{one['hash'][:8]}`",
            "the same" if first[one["run"], "torch"] == first[one["run"], "jax"] else "other",
        )
        for one in record["runs"]
    )
    head = "trainer, server", "reward, last 20 steps", "KL", "weights' hash", "JAX's first steps: bits"
    return f"{table(head, rows)}\n\n{record['settings']['steps']} steps ({link('rollouts')})."


def engines_differences() -> str:
    """Where decoding and one pass differ, beside what others measured, from `benchmarks.engines_differences`."""
    rows = [
        (row["what"], f"**{row['found'] or 'none'}**", row["said"], f"`python -m pytest {row['test']}`")
        for row in results("engines-differences")["rows"]
    ]
    return f"{table(('what', 'computed', 'who measured', 'a test'), rows)}\n\n({link('engines-differences')})"
