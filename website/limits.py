"""Figures of what speed is made of: every public function here is one."""

from __future__ import annotations

from benchmarks.support.limits import Group, counts, groups
from website.records import link, results, span, table, where
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


def missed_limits() -> str:
    record = results("speed")
    found = groups(record["rows"], counts(), record["machine"]["torch threads"])
    rows = (
        (
            *(f"{VECTORS[group.vectors]}, 2^{group.exponent}", f"`{group.kind}`", f"{group.missed} of {group.rows}"),
            *(f"{group.worst:.2f}", *(span(values, 1) if values else "" for values in _rates(group))),
            f"{group.beyond} of {group.missed}" if group.each else "",
        )
        for group in found
    )
    heading = ("", "limits", "missed", "worst / limit", "instructions an element", "a ns and core", "needed", "beyond")
    return table(heading, rows)


def _rates(group: Group) -> tuple[list[float], ...]:
    return group.each, group.taken, group.needed


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
    "nearest": (
        *("float(5,2)", "e4m3fnuz", "e8m0fnu", "fixed(8,4,wrap=True)", "posit16"),
        *("block(8,dim=-1)", "mxfp8_e4m3", "nvfp4"),
    ),
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
