"""Figures of what speed is made of: every public function here is one."""

from __future__ import annotations

from statistics import median

from benchmarks.support.limits import BOUNDS, LARGE, MIDDLE, PACKAGE, SMALL, beyond, kind_of
from website.records import link, results, table, where
from website.speed import VECTORS


def cliffs() -> str:
    record = results("cliffs")
    found: dict[str, dict[str, list[float]]] = {}
    for row in record["rows"]:
        column = row["dtype"] if row["operation"] == "nearest" else row["operation"]
        found.setdefault(row["format"], {}).setdefault(column, []).append(row["ratio"])
    columns = "float32", "bfloat16", "float16", "float64", "encode", "decode"
    rows = (
        (f"`{text}`", *(" / ".join(f"{ratio:.1f}" for ratio in ratios.get(column, ())) for column in columns))
        for text, ratios in found.items()
    )
    beyond = sum(row["ratio"] > record["cliff"] for row in record["rows"])
    return (
        f"Copies of the same bytes on {where(record)}; {beyond} of {len(record['rows'])} are beyond "
        f"{record['cliff']:g} ({link('cliffs')}):\n\n" + table(("format", *columns), rows)
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
            f"{median(found[kind, exponent, name]):.1f}, at most {bound.limits[name]:g}" if name in bound.limits else ""
            for name in VECTORS
        ]
        rows.append((_KINDS[kind, exponent], bound.by, bound.reason, *cells))
    return table(("what", "bounded by", "because", *(f"{text}: median, limit" for text in VECTORS.values())), rows)


def beyond_bounds() -> str:
    """The rows that take more than their limit, by format."""
    record = results("speed")
    found: dict[tuple[str, str], list[str]] = {}
    for row, limit in beyond(record["rows"]):
        bound = BOUNDS[kind_of(row["operation"], row["format"]), row["exponent"]].by
        dtype = "" if row["dtype"] == "float32" else f"{row['dtype']}, "
        what = f"{VECTORS[row['vectors']]}, {dtype}{row['operation']}, 2^{row['exponent']}"
        found.setdefault((row["format"], bound), []).append(f"{what}: {row['ratio']:.1f} ({limit:g})")
    rows = ((f"`{text}`", bound, "; ".join(each)) for (text, bound), each in found.items())
    return f"{table(('format', 'bound', 'rows, and limits'), rows)}\n\nOn {where(record)} ({link('speed')})."


def instructions() -> str:
    record = results("instructions")
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in record["rows"]:
        sums = found.setdefault((row["format"], row["operation"], row["dtype"]), {})
        sums[row["vectors"]] = sums.get(row["vectors"], 0.0) + row["each"]
    rows = (
        (
            f"`{text}` {operation}{'' if dtype == 'float32' else f', {dtype}'}",
            *(f"{sums[vectors]:.2f}" for vectors in ("avx512", "avx2")),
        )
        for (text, operation, dtype), sums in found.items()
        if text in _INSTRUCTIVE[operation] and (dtype == "float32" or text in _INSTRUCTIVE[operation][-3:])
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
