"""Figures of what speed is made of: every public function here is one."""

from __future__ import annotations

from statistics import median

from benchmarks.support.limits import BOUNDS, LARGE, MIDDLE, PACKAGE, SMALL, beyond, kind_of
from website.records import link, results, table, where
from website.speed import VECTORS


def cliffs() -> str:
    """How many rows are far from a copy, and the one that is farthest."""
    record = results("cliffs")
    rows, cliff = record["rows"], record["cliff"]
    worst = max(rows, key=lambda row: row["ratio"])
    beyond = sum(row["ratio"] > cliff for row in rows)
    return (
        f"{beyond} of {len(rows)} rows take more than {cliff:g} copies of the same bytes; the most are "
        f"{worst['ratio']:.1f}, for `{worst['format']}` of {worst['dtype']} numbers, on {where(record)} "
        f"({link('cliffs')})."
    )


_KINDS = {
    ("element", SMALL): "a call on 64 numbers, to nearest",
    ("stochastic", SMALL): "a call on 64 numbers, stochastically",
    ("element", MIDDLE): "single numbers in caches",
    ("codes", MIDDLE): "codes of single numbers, to and fro, in caches",
    ("block", MIDDLE): "blocks in caches",
    ("nvfp4", MIDDLE): "NVFP4 in caches",
    ("element", LARGE): "single numbers in memory",
    ("codes", LARGE): "codes of single numbers in memory",
    ("block", LARGE): "blocks in memory",
    ("nvfp4", LARGE): "NVFP4 in memory",
    ("stochastic", MIDDLE): "stochastic rounding in caches",
    ("stochastic", LARGE): "stochastic rounding in memory",
}


def bounds() -> str:
    """What bounds each kind of rows, and between which ratios half of them and all of them lie."""
    found: dict[tuple[str, int, str], list[float]] = {}
    for row in results("speed")["rows"]:
        if row["operation"] != PACKAGE:
            kind = kind_of(row["operation"], row["format"])
            found.setdefault((kind, row["exponent"], row["vectors"]), []).append(row["ratio"])
    rows = []
    for (kind, exponent), bound in BOUNDS.items():
        cells = [
            f"{median(found[kind, exponent, name]):.1f}; {bound.limits[name]:g}" if name in bound.limits else ""
            for name in VECTORS
        ]
        rows.append((_KINDS[kind, exponent], bound.by, bound.reason, *cells))
    return table(("what", "bounded by", "because", *(f"{text}: median; limit" for text in VECTORS.values())), rows)


def beyond_bounds() -> str:
    """How many rows take more than their limit, and their formats."""
    record = results("speed")
    found = [row["format"] for row, _ in beyond(record["rows"])]
    names = ", ".join(f"`{text}`" for text in dict.fromkeys(found))
    return (
        f"{len(found)} of {len(record['rows'])} rows take more than their limit, on {where(record)} ({link('speed')}): "
        f"{names}."
    )


def instructions() -> str:
    record = results("instructions")
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in record["rows"]:
        if row["dtype"] == "float32" and row["format"] in _INSTRUCTIVE[row["operation"]]:
            sums = found.setdefault((row["format"], row["operation"]), {})
            sums[row["vectors"]] = sums.get(row["vectors"], 0.0) + row["each"]
    rows = (
        (f"`{text}` {operation}", *(f"{sums[vectors]:.2f}" for vectors in ("avx512", "avx2")))
        for (text, operation), sums in found.items()
    )
    return table(("operation", "AVX-512", "AVX2"), rows)


_INSTRUCTIVE = {
    "nearest": "float(5,2) e4m3fnuz e8m0fnu fixed(8,4,wrap=True) posit16 block(8,dim=-1) mxfp8_e4m3 nvfp4".split(),
    "stochastic": ("float(5,2)",),
    "encode": ("e4m3fn", "mxfp8_e4m3", "nvfp4"),
    "decode": ("e4m3fn", "uint8", "mxfp8_e4m3", "nvfp4"),
}


def xla_instructions() -> str:
    rows = (
        (f"`{row['format']}` {row['operation']}", str(row["fusions"]), f"{row['each']:.2f}")
        for row in results("xla-instructions")["rows"]
        if row["format"] in _INSTRUCTIVE[row["operation"]]
    )
    return f"On {where(results('xla-instructions'))} ({link('xla-instructions')}).\n\n" + table(
        ("operation", "loops over memory", "instructions an element"), rows
    )


def private_parts() -> str:
    record = results("internals")
    rows = ((f"`{row['part']}`", row["call"], f"{row['worth']:.2g}") for row in record["rows"])
    return (
        f"Measured with one thread on {where(record)} ({link('internals')}); medians of calls that took turns.\n\n"
        + table(("private part", "call", "times as long without it"), rows)
    )
