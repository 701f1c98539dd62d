"""Formats to look at, vectors for conformance tests, and records of runs: `python -m qcore --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qcore.arguments import check_seed, quoted
from qcore.formats.names import NAMED
from qcore.formats.number import OVERFLOWS, check_number
from qcore.law.carrier import CARRIERS
from qcore.law.rounding import MODES


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status, 1 where `check` finds a difference. Wrong arguments exit with 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        parser.error(f"this needs {package}, which is not installed: pip install {package}")


def _list(options: argparse.Namespace) -> int:
    from qcore.cli.tables import print_list

    print_list(list(NAMED))
    return 0


def _designs(options: argparse.Namespace) -> int:
    from qcore.cli.tables import print_designs

    print_designs(options.chip)
    return 0


def _show(options: argparse.Namespace) -> int:
    from qcore.cli.tables import print_format

    if options.plot:
        from qcore.cli.plots import draw

        draw(options.format, options.plot)
    for name in options.format:
        print_format(name)
    return 0


def _vectors(options: argparse.Namespace) -> int:
    if options.format.startswith("accumulator"):
        return _sums(options)
    from qcore.cli.vectors import Header, write
    from qcore.version import __version__

    for name in ("terms", "operands"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} with {options.format}; allowed is --{name} with an accumulator")
    if options.mode is None:
        raise ValueError("the following arguments are required: --mode, with a format")
    key = options.key
    stochastic = MODES[options.mode].stochastic
    if key is not None and not stochastic:
        raise ValueError(f"--key {key}; allowed is no key with --mode {options.mode}, only with stochastic modes")
    key = 0 if stochastic and key is None else key
    header = Header(options.format, options.mode, options.dtype or "float32", options.overflow, key, __version__)
    lines = write(options.output, header, options.count, options.seed)
    print(f"{options.output}: {lines} lines ({header.format}, {header.mode}, {header.dtype})")
    return 0


def _sums(options: argparse.Namespace) -> int:
    from qcore.cli.sum_files import write
    from qcore.cli.sums import Unit
    from qcore.linalg.accumulator import check_accumulator

    for name in ("mode", "overflow", "dtype"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} with {options.format}; allowed is --{name} with a format")
    stochastic = check_accumulator(options.format).stochastic
    key = 0 if stochastic and options.key is None else options.key
    first, second = options.operands or (None, None)
    unit = Unit(options.format, first, second, 64 if options.terms is None else options.terms, key)
    print(write(options.output, unit, options.count, options.seed))
    return 0


def _emit_c(options: argparse.Namespace) -> int:
    from qcore.cli.emit_c import emit

    files = emit(options.format, options.rounding, options.output)
    print("\n".join(str(options.output / name) for name in files) if options.output else next(iter(files.values())))
    return 0


def _check(options: argparse.Namespace) -> int:
    if (options.file is None) == (options.functions is None):
        raise ValueError("one of FILE and --functions is needed, and not both")
    if options.functions:
        from qcore.cli.functions import report as report_functions

        text, wrong = report_functions(options.functions)
        print(text)
        return int(wrong > 0)
    from qcore.cli import sum_files
    from qcore.cli import vectors as format_files

    kind = sum_files if sum_files.is_of_sums(options.file) else format_files
    vectors: Any = kind.read(options.file)
    differing = kind.compare(vectors, options.any_nan)
    print(kind.report(options.file, vectors, differing))
    return int(len(differing) > 0)


def _insight(options: argparse.Namespace) -> int:
    from qcore.insight import Record

    record = Record.load(options.file)
    if options.plot:
        from qcore.insight.pictures import draw

        draw(record, options.plot)
        print(f"{options.plot}: {len(record.sites)} sites, {len(record.steps)} steps")
    else:
        from qcore.insight.advice import print_worst

        print_worst(record)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m qcore", description="Number formats. Without a command: a table of all that have names."
    )
    parser.set_defaults(run=_list)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    formats = "a name, or a text such as float(5,2) or scaled(e4m3fn,{-1:32}); docs/formats.md has all kinds"

    show = _command(commands, "show", _show, "a format's properties and values")
    show.add_argument("format", metavar="FORMAT", nargs="+", type=_format, help=formats)
    show.add_argument("--plot", metavar="FILE", type=Path, help="draw them side by side as well: FILE.png or FILE.svg")

    designs = _command(commands, "designs", _designs, "matrix instructions of chips that accumulators have by name")
    designs.add_argument("chip", metavar="NAME", nargs="?", default="", help="those that begin with it, such as hopper")

    vectors = _command(commands, "vectors", _vectors, "write conformance vectors: hard inputs and the law's results")
    text = formats + "; or a matrix instruction such as hopper.wgmma.e4m3, or the text of an accumulator"
    vectors.add_argument("format", metavar="FORMAT", type=_format_or_accumulator, help=text)
    vectors.add_argument("--mode", choices=MODES, help="the rounding mode, which a format needs")
    vectors.add_argument("--overflow", choices=OVERFLOWS, help="what overflow becomes (default: the format's policy)")
    vectors.add_argument("--dtype", choices=CARRIERS, help="of a format's inputs and outputs (default float32)")
    vectors.add_argument("--terms", metavar="N", type=_natural, help="an accumulator's products in a sum (default 64)")
    text = "formats of an accumulator's operands (default: the instruction's, or float32)"
    vectors.add_argument("--operands", metavar=("A", "B"), nargs=2, type=_format, help=text)
    text = "a format's random inputs, or an accumulator's sums (default 1000)"
    vectors.add_argument("--count", metavar="N", type=_natural, default=1000, help=text)
    vectors.add_argument("--key", metavar="K", type=_key, help="for stochastic rounding (default 0)")
    vectors.add_argument("--seed", metavar="S", type=_natural, default=0, help="of the random inputs (default 0)")
    text = "FILE.csv, FILE.json, or FILE.mem for $readmemh"
    vectors.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help=text)

    emit = _command(commands, "emit-c", _emit_c, "write rounding as C99 without dependencies, that checks itself")
    emit.add_argument("format", metavar="FORMAT", type=_format, help=formats)
    emit.add_argument("--rounding", default="nearest", choices=MODES, help="the rounding mode (default nearest)")
    text = "write it there, with a header and an import for SystemVerilog (default: print the C)"
    emit.add_argument("--output", metavar="DIR", type=Path, help=text)

    check = _command(commands, "check", _check, "compare results in a file of vectors with the law")
    check.add_argument("file", metavar="FILE", nargs="?", type=Path, help="vectors with results replaced")
    packages = ("qcore", "qtorch", "qjax")
    text = "instead of a file: a package's exp, log, ... here, eager and compiled, where libraries could differ"
    check.add_argument("--functions", choices=packages, help=text)
    check.add_argument("--any-nan", action="store_true", help="any NaN will do where the law has one")

    insight = _command(commands, "insight", _insight, "the worst sites of a recorded run, with advice")
    insight.add_argument("file", metavar="FILE", type=Path, help="a record, as Record.save wrote it")
    insight.add_argument("--plot", metavar="FILE", type=Path, help="instead of the table, a page of pictures: FILE.svg")
    return parser


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(run=run)
    return parser


def _format(text: str) -> str:
    """The text of the format that a text stands for."""
    try:
        return check_number(text, "format").text
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _format_or_accumulator(text: str) -> str:
    """The text of the format, or of the accumulator, that a text stands for."""
    if not text.startswith("accumulator") and ("(" in text or "." not in text):
        return _format(text)
    from qcore.linalg.accumulator import check_accumulator

    try:
        return check_accumulator(text).text
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{quoted(text)}; allowed is an int >= 0")
    return int(text)


def _key(text: str) -> int:
    key = _natural(text)
    try:
        check_seed(key)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return key


if __name__ == "__main__":
    sys.exit(main())
