"""Stand-alone C99 files that compute a law, each with a header and an import for SystemVerilog.

The law's own Python runs once on values that record operations (`qcore.trace`), as for the kernels of qtorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from qcore.arguments import quoted
from qcore.cli.emit_formats import FormatUnit
from qcore.cli.emit_operations import OperationUnit
from qcore.cli.emit_sums import SumUnit
from qcore.cli.operations import NAMES
from qcore.files import write_texts
from qcore.formats.number import check_number
from qcore.law.rounding import check_rounding
from qcore.linalg.accumulator import is_accumulator
from qcore.version import __version__


class Written(Protocol):
    """What a file of C is made of.

    Attributes:
        name: of the files.
        title: one sentence.
        options: of the command that writes it.
        about: lines for readers.
        includes: the names of headers.
        prototypes: the functions that others call.
        body: the C of the functions, and of the program that checks them.
        verilog: the imports for SystemVerilog.
    """

    name: str

    @property
    def title(self) -> str: ...

    @property
    def options(self) -> str: ...

    @property
    def about(self) -> list[str]: ...

    @property
    def includes(self) -> tuple[str, ...]: ...

    @property
    def prototypes(self) -> list[str]: ...

    @property
    def body(self) -> str: ...

    @property
    def verilog(self) -> list[str]: ...


def emit(
    given: Any,
    rounding: Any = None,
    folder: Path | None = None,
    operands: str | Sequence[str] | None = None,
    result: str | None = None,
) -> dict[str, str]:
    """The files for a format, an accumulator or an operation, by name; written into a folder if there is one.

    Args:
        given: a format or its text; an accumulator, its text or the name of an instruction; or an operation's name.
        rounding: a format's or an operation's mode, or its name; None is to nearest.
        folder: where to; it is made where it is missing.
        operands: the formats of an accumulator's operands; None is those of the instruction, or float32. Of an
            operation the one format of its operands.
        result: the format of an operation's result; None is that of its operands.

    Returns:
        The texts of NAME.c, NAME.h and NAME.sv.

    Raises:
        ValueError: if rounding or operands are not for what is given, or it has no C.

    Example:
        >>> emit("e5m2", "stochastic").keys()
        dict_keys(['round_e5m2_stochastic.c', 'round_e5m2_stochastic.h', 'round_e5m2_stochastic.sv'])
        >>> next(iter(emit("hopper.wgmma.e4m3")))
        'dot_hopper_wgmma_e4m3.c'
    """
    unit: Written
    is_operation = isinstance(given, str) and given in NAMES
    if isinstance(operands, str) != is_operation:
        raise ValueError(f"operands={quoted(operands)} with {quoted(given)}; allowed is one format for an operation")
    if result is not None and not is_operation:
        raise ValueError(f"result={quoted(result)} with {quoted(given)}; allowed is a result with an operation")
    mode = check_rounding("nearest" if rounding is None else rounding)
    if isinstance(operands, str):
        unit = OperationUnit(given, operands, result or operands, mode)
    elif is_accumulator(given):
        if rounding is not None:
            raise ValueError(f"rounding={quoted(rounding)} with an accumulator; allowed is rounding with a format")
        unit = SumUnit(given, operands)
    else:
        if operands is not None:
            raise ValueError(f"operands={quoted(operands)} with a format; allowed are operands with an accumulator")
        unit = FormatUnit(check_number(given), mode)
    files = {f"{unit.name}.c": _source(unit), f"{unit.name}.h": _header(unit), f"{unit.name}.sv": _verilog(unit)}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_texts({folder / name: text for name, text in files.items()})
    return files


def _source(unit: Written) -> str:
    """The file of C."""
    about = [f"Written by qcore {__version__}: qbits emit-c {unit.options}", *unit.about]
    library = " -lm" if "math" in unit.includes else ""
    about += [f"To check it: cc -std=c99 -DSELF_CHECK {unit.name}.c -o check{library} && ./check"]
    about += ["A comment is the function of the law that computes the values below it; values have its names."]
    head = [f"/* {unit.title}", "", *(f"   {line}" for line in about), "*/", ""]
    includes = [f"#include <{name}.h>" for name in unit.includes]
    return "\n".join([*head, *includes, "", *(f"{one};" for one in unit.prototypes), "", unit.body])


def _header(unit: Written) -> str:
    """The file that declares the functions, for C and C++."""
    guard = f"{unit.name.upper()}_H"
    lines = [f"/* {unit.title} See {unit.name}.c. */", f"#ifndef {guard}", f"#define {guard}", ""]
    lines += ["#include <stddef.h>", "#include <stdint.h>", "", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    lines += [f"{one};" for one in unit.prototypes]
    return "\n".join([*lines, "", "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""])


def _verilog(unit: Written) -> str:
    """The import for SystemVerilog by DPI-C."""
    return "\n".join([f"// {unit.title} Compile {unit.name}.c into the simulation.", *unit.verilog, ""])
