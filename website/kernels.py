"""The C of kernels, with what each part comes from: every public function here is a part of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from qcore.writer import WRITER
from qtorch._kernels import laws
from qtorch._rounding.plan import RoundingPlan, make_plan
from website.records import table

_FORMAT = "float(5,2)"
_VALUES = "// values.h: integers and floats by their bits, and what Python calls; the same in all kernels"
_MARK = re.compile(r"^ *// (\$\w+|kernel\.c|results\.c)$")
_BRANCH = re.compile(r"#(if|elif|else|endif)\b *([^/]*)")


def one_kernel() -> str:
    """The kernel that rounds float32 numbers to the nearest ones of a format: all that a compiler sees of it."""
    plan = _plan()
    kernel = laws.rounding_kernel(plan.program, "flat")
    functions = {WRITER.name(value): value.function for value in kernel.trace.values.values()}
    fields = [name for _, name in plan.program.fields()]
    lines = _without_empty_parts(_compiled(_without_values(kernel.source(marked=True).splitlines())))
    return "\n".join(("```c", *_with_reasons(_indented(lines), functions, fields), "```"))


def integers_of_a_format() -> str:
    """The integers of the format that the kernel reads, by the law's names."""
    plan = _plan()
    source = laws.rounding_kernel(plan.program, "flat").source()
    fields = zip(plan.program.fields(), plan.constants, strict=True)
    rows = [(f"`{name}`", str(number)) for i, ((_, name), number) in enumerate(fields) if f"constants[{i}]" in source]
    return table(("field of `Grid`", _FORMAT), rows)


def _plan() -> RoundingPlan:
    return make_plan(_FORMAT, "nearest", torch.float32, None, False)


def _without_values(lines: list[str]) -> list[str]:
    begin = lines.index("// $values")
    end = lines.index("// kernel.c")
    return ["// kernel.c", *lines[:begin], _VALUES, "", *lines[end:]]


def _compiled(lines: list[str]) -> Iterator[str]:
    """The lines that the template's conditions leave, which read its definitions."""
    numbers: dict[str, int] = {}
    stack: list[tuple[bool, bool]] = []  # whether the lines count, and whether a branch before did
    for line in lines:
        branch = _BRANCH.match(line.strip())
        outside = all(counts for counts, _ in stack[:-1] if branch) and (bool(branch) or all(one for one, _ in stack))
        if branch is None:
            if outside:
                found = re.match(r" *#define (\w+) (\d+)$", line)
                numbers |= {found[1]: int(found[2])} if found else {}
                yield line
        elif branch[1] == "if":
            true = _holds(branch[2], numbers)
            stack.append((true, true))
        elif branch[1] == "endif":
            stack.pop()
        else:
            _, before = stack.pop()
            true = not before and (branch[1] == "else" or _holds(branch[2], numbers))
            stack.append((true, before or true))


def _holds(condition: str, numbers: dict[str, int]) -> bool:
    text = re.sub(r"\w+", lambda name: str(numbers.get(name[0], name[0])), condition)
    text = text.replace("&&", " and ").replace("||", " or ").replace("!", " not ")
    return bool(eval(text, {"__builtins__": {}}))


def _without_empty_parts(lines: Iterator[str]) -> Iterator[str]:
    """Without marks of names that stand for nothing, and with one empty line in place of several."""
    before: list[str] = []
    part = ""
    for line in lines:
        mark = _MARK.match(line)
        if mark is None:
            if line.strip() or (before and before[-1].strip()):
                before.append(line)
            continue
        if mark[1].startswith("$"):
            yield from before
            part, before = line, []
        elif any(one.strip() for one in before) or not part:
            yield from ([part] if part else [])
            yield from before
            part, before = "", [line]
        else:
            part, before = "", []
    yield from before


def _indented(lines: Iterator[str]) -> Iterator[str]:
    """By braces: names in the template stand for lines of other depths."""
    depth, macro = 0, False
    for line in lines:
        text = line.strip()
        if macro or (text.startswith("#") and "pragma" not in text):
            yield line if macro else text
        else:
            yield "    " * (depth - text.startswith("}")) + text if text else ""
            code = text.partition("//")[0]
            depth += code.count("{") - code.count("}")
        macro = text.endswith("\\")


def _with_reasons(lines: Iterator[str], functions: dict[str, str], fields: list[str]) -> Iterator[str]:
    """Above values the law's function that names them, and beside constants their names."""
    said = ""
    for line in lines:
        found = re.match(r"( *)const \w+ (\w+) = (?:constants\[(\d+)\])?", line)
        if found and found[3]:
            yield f"{line}  // {fields[int(found[3])]}"
            continue
        reason = functions.get(found[2], "") if found else ""
        if found and reason and reason != said:
            yield f"{found[1]}// {reason}"
        said = reason or said
        yield line
