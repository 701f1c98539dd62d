"""What README and the first page claim, in numbers: every public function here is a figure."""

from __future__ import annotations

import re

from qcore.formats.names import NAMED
from qcore.law.rounding import MODES
from qcore.linalg.designs import DESIGNS
from qcore.recipes import RECIPES
from website.records import results, span, table, trained


def in_numbers() -> str:
    """Each claim in one line, with the command that shows it."""
    return "\n".join(
        f"- **{claim}** {words} (`{command}`)."
        for claim, words, command in (_silicon(), _formats(), _chips(), _speed(), _bits(), _training(), _peer())
    )


def at_a_glance() -> str:
    """How much there is, in three lines."""
    instructions, chips = _gpus()
    return (
        f"- **{len(NAMED)}** formats by name, and any of your own\n"
        f"- **{instructions}** matrix instructions of {chips} GPU generations\n"
        f"- **{len(RECIPES)}** recipes of papers and programs"
    )


def ledger() -> str:
    """What differs, of how many, compared with what: chips and standards first, own comparisons last."""
    silicon = results("silicon")
    gpus = silicon["gpus"]
    published = {row["source"]: row["ours"] for row in results("published")["rows"]}
    differing, numbers = re.findall(r"\d+", published["P3109/Public, value tables"])[:2]
    passed, checks = map(int, re.findall(r"\d+", published["Fasi et al. 2021"]))
    lanes, files = silicon["processor"], results("gguf-files")
    ours, count = _compared()
    pairs = [
        [row["weights"][-1] for row in runs if row["steps"] == max(one["steps"] for one in runs)]
        for *_, runs in trained()
    ]
    others = sum(one != ends[0] for ends in pairs for one in ends)
    rows = [
        (
            f"{silicon['differing']:,}",
            f"{silicon['sums']:,} sums",
            f"**measured on {len(gpus)} GPUs**, {gpus[0]} to {gpus[-1]}",
        ),
        (
            f"{sum(row['differing'] for row in lanes):,}",
            f"{sum(row['lanes'] for row in lanes):,} sums",
            "of a **CPU's own instructions**: " + ", ".join(dict.fromkeys(row["instruction"].upper() for row in lanes)),
        ),
        (f"{int(differing):,}", f"{int(numbers):,} numbers", "of the **value tables of IEEE P3109**"),
        (
            f"{sum(row['differing'] for row in files['rows']):,}",
            f"{sum(row['count'] for row in files['rows']):,} numbers and bytes",
            f"of **GGUF blocks**, as llama.cpp's package gguf {files['gguf']} reads and writes them",
        ),
        (f"{checks - passed}", f"{checks} checks", "of a V100, **published** by Fasi et al. 2021"),
        (f"{ours:,}", f"{count:,} results", "of PyTorch and JAX, eager and compiled; NumPy is the reference"),
        (
            f"{others:,}",
            f"{sum(map(len, pairs))} trainings",
            f"of {len(pairs)} models, formats and optimizers: each ends in one set of weights, in PyTorch and JAX",
        ),
        ("not run", "kernels for GPUs", "on a GPU: they were compiled, and interpreted on CPUs"),
    ]
    return table(("differ", "of", "compared with"), rows)


def speed_in_a_line() -> str:
    """What rounding costs."""
    _, words, command = _speed()
    return f"{words.replace('docs/', '')} (`{command}`)."


def _gpus() -> tuple[int, int]:
    """The matrix instructions of GPUs, and their generations."""
    of_gpus = [name for name in DESIGNS if not name.startswith("x86.")]
    return len(of_gpus), len({name.partition(".")[0] for name in of_gpus})


def _compared() -> tuple[int, int]:
    """The results of PyTorch and JAX that differ from NumPy's, and all that were compared."""
    found = [case for case in results("consistency")["cases"] if case["backend"] != "numpy"]
    return sum(case["differing"] for case in found), sum(case["inputs"] for case in found)


def _formats() -> tuple[str, str, str]:
    return (
        "Any format.",
        f"[{len(NAMED)} names](docs/formats.md#named-formats) such as e4m3fn, MXFP4 and NVFP4; floats, fixed point and "
        f"posits of any width; [blocks](docs/blocks.md) of any size; {len(MODES)} [rounding modes](docs/rounding.md)",
        "qbits",
    )


def _chips() -> tuple[str, str, str]:
    instructions, chips = _gpus()
    return (
        "Real chips.",
        f"{instructions} [matrix instructions](docs/machines.md) of {chips} GPU generations, "
        "with the bits of their sums",
        "qbits designs",
    )


def _silicon() -> tuple[str, str, str]:
    found = results("silicon")
    return (
        "Measured.",
        f"{found['differing']:,} of {found['sums']:,} sums that {len(found['gpus'])} GPUs computed "
        "[differ](docs/machines.md#how-it-is-checked) from those of their instructions here",
        "python -m benchmarks.silicon",
    )


def _bits() -> tuple[str, str, str]:
    differing, count = _compared()
    return (
        "The same bits.",
        f"{differing:,} of {count:,} results of PyTorch and JAX, eager and compiled, "
        "[differ](docs/checked.md) from NumPy's",
        "python -m benchmarks.consistency",
    )


def _training() -> tuple[str, str, str]:
    kinds = [[row["steps"] for row in runs] for _, _, runs in trained()]
    runs = sum(steps.count(max(steps)) for steps in kinds)
    return (
        "The same training.",
        f"Each of {len(kinds)} models with a format and an optimizer ends in "
        "[one set of weights](docs/same-training.md), in "
        f"PyTorch and in JAX: {runs} runs, eager and compiled, on one to four threads or devices",
        "python -m benchmarks.same_training",
    )


def _speed() -> tuple[str, str, str]:
    rows = [row for row in results("speed")["rows"] if (row["dtype"], row["exponent"]) == ("float32", 24)]
    copies, draws = (
        span((row["ratio"] for row in rows if row["operation"] == name and row["vectors"] != "jax"), 1)
        for name in ("nearest", "stochastic")
    )
    return (
        "Fast.",
        f"In PyTorch on a CPU, rounding a large tensor to nearest takes the time of {copies} [copies](docs/speed.md) "
        f"of it, and stochastic rounding {draws} times as long as `torch.rand_like`",
        "python -m benchmarks.speed",
    )


def _peer() -> tuple[str, str, str]:
    rows = [row for row in results("peers-qpytorch")["rows"] if row["rounding"] != "-"]
    return (
        "A drop-in for QPyTorch.",
        f"The same [names](docs/from-others.md), {span((row['ratio'] for row in rows), 1)} times as fast as "
        "its kernels",
        "QPYTORCH=FOLDER python -m benchmarks.peers --only QPyTorch",
    )
