"""The command `qbits`, also `python -m qcore`: formats to look at, vectors for tests, records of runs."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from qcore.arguments import check_seed, printable, quoted
from qcore.files import is_regular
from qcore.formats.names import NAMED
from qcore.formats.number import OVERFLOWS, check_number
from qcore.law.carrier import CARRIERS
from qcore.law.rounding import MODES
from qcore.version import NUMERICS, __version__


def main(arguments: Sequence[str] | None = None, program: str = "qbits") -> int:
    """Runs a command; returns the exit status, see `_EXIT`. Wrong arguments exit with 2."""
    parser = _parser(program)
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed; allowed is an open one, such as > /dev/null")
        try:
            _check_command(parser, sys.argv[1:] if arguments is None else arguments)
            options = parser.parse_args(arguments)
            return options.run(options)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has enough
        _give_up_output()
        return 1  # as rich does where it prints a table
    except KeyboardInterrupt:
        _give_up_output()
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        text = f"this needs {package}, which is not installed: pip install {package}"
    except MemoryError as error:
        text = f"not enough memory for these sizes: {error}"
    except (ValueError, OSError) as error:
        text = str(error)
    _give_up_output()
    lines = (printable(line) for line in text.split("\n"))  # names of files come with it
    parser.exit(2, f"{parser.prog}: error: {chr(10).join(lines)}\n")


def _give_up_output() -> None:
    """What is not printed yet goes if it cannot be printed: Python would complain again when it ends."""
    with suppress(ValueError):  # a stream of a program that calls `main` may have no file
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]


def _print_fitted(text: str, to: IO[str] | None = None) -> None:
    """Prints lines as wide as the terminal."""
    from qcore.tables import fitted_text

    for line in text.split("\n"):
        print("\n".join(fitted_text(line)), file=to)


def _say(text: str, file: Path) -> None:
    """Prints what was written; beside the content of a file that may be standard output, as an error is."""
    _print_fitted(text, sys.stdout if is_regular(file) else sys.stderr)


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

    for name in options.format:
        print_format(name)
    return 0


def _vectors(options: argparse.Namespace) -> int:
    from qcore.cli.operations import NAMES

    if options.law in NAMES:
        return _operation(options)
    for name in ("format", "result"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} with {options.law}; allowed is --{name} with an operation")
    options.format = options.law
    if options.format.startswith("accumulator"):
        return _sums(options)
    from qcore.cli.vectors import Header, write

    for name in ("terms", "operands", "no_addend"):
        if getattr(options, name):
            name = name.replace("_", "-")
            raise ValueError(f"--{name} with {options.format}; allowed is --{name} with an accumulator")
    if options.rounding is None:
        raise ValueError("the following arguments are required: --rounding, with a format")
    key = _key_of_mode(options)
    header = Header(options.format, options.rounding, options.dtype or "float32", options.overflow, key, __version__)
    _say(write(options.output, header, options.count, options.seed), options.output)
    return 0


def _operation(options: argparse.Namespace) -> int:
    from qcore.cli.operations import Header, write

    for name in ("terms", "operands", "no_addend", "dtype"):
        if getattr(options, name):
            name = name.replace("_", "-")
            raise ValueError(f"--{name} with {options.law}; allowed are --format and --result with an operation")
    for name in ("format", "rounding"):
        if getattr(options, name) is None:
            raise ValueError(f"the following arguments are required: --{name}, with an operation")
    result = options.result or options.format
    modes = options.rounding, options.overflow, _key_of_mode(options)
    header = Header(options.law, options.format, result, *modes, __version__)
    _say(write(options.output, header, options.count, options.seed), options.output)
    return 0


def _key_of_mode(options: argparse.Namespace) -> int | None:
    """The key of vectors of a mode: 0 if a stochastic one has none."""
    stochastic = MODES[options.rounding].stochastic
    if options.key is not None and not stochastic:
        raise ValueError(
            f"--key {options.key}; allowed is no key with --rounding {options.rounding}, only with stochastic modes"
        )
    return 0 if stochastic and options.key is None else options.key


def _sums(options: argparse.Namespace) -> int:
    from qcore.cli.sum_files import write
    from qcore.cli.sums import Unit

    for name in ("rounding", "overflow", "dtype"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} with {options.format}; allowed is --{name} with a format")
    first, second = options.operands or (None, None)
    terms = 64 if options.terms is None else options.terms
    key = _key_of(options.format, options.key)
    unit = Unit(options.format, first, second, terms, key, not options.no_addend)
    _say(write(options.output, unit, options.count, options.seed), options.output)
    return 0


def _layer(options: argparse.Namespace) -> int:
    from qcore.cli.layers import Layer, form_text, read_tensors
    from qcore.cli.sum_files import write_layer

    shapes, tensors = (options.input, options.weight), None
    if (options.tensors is None) == (None in shapes):
        raise ValueError("--input and --weight are needed, or --tensors alone")
    if options.tensors is not None:
        if shapes != (None, None):
            raise ValueError("--input and --weight with --tensors; allowed is one of them")
        tensors = read_tensors(options.tensors)
        shapes = tensors["input"].shape, tensors["weight"].shape
    settings = {name: getattr(options, name) for name in ("stride", "padding", "dilation", "groups")}
    first, second = options.operands or (None, None)
    key, form = _key_of(options.accumulator, options.key), form_text(len(shapes[1]), settings)
    law = options.accumulator, first, second, key, form
    layer = Layer(*law, shapes[0], shapes[1], options.bias, options.result, options.rounding)
    drawn = layer.draw(options.seed) if tensors is None else layer.rounded(tensors)
    _print_fitted(write_layer(options.output, layer, drawn))
    return 0


def _key_of(accumulator: str, key: int | None) -> int | None:
    """The key of an accumulator's vectors: 0 if a stochastic one has none."""
    from qcore.linalg.accumulator import check_accumulator

    return 0 if key is None and check_accumulator(accumulator).stochastic else key


def _emit_c(options: argparse.Namespace) -> int:
    from qcore.cli.emit_c import emit

    if options.format is not None and options.operands:
        raise ValueError("--operands with --format; allowed is one of them")
    files = emit(options.law, options.rounding, options.output, options.format or options.operands, options.result)
    print("\n".join(str(options.output / name) for name in files) if options.output else next(iter(files.values())))
    return 0


def _emit_smt(options: argparse.Namespace) -> int:
    from qcore.cli.emit_smt import emit

    ((name, text),) = emit(options.format, options.rounding, options.dtype, options.output, options.operands).items()
    print(str(options.output / name) if options.output else text, end="\n" if options.output else "")
    return 0


def _p3109(options: argparse.Namespace) -> int:
    from qcore.cli.declarations import declare

    files = declare(options.output)
    print("\n".join(str(options.output / name) for name in files) if options.output else "".join(files.values()))
    return 0


def _check(options: argparse.Namespace) -> int:
    if (options.file is None) == (options.functions is None):
        raise ValueError("one of FILE and --functions is needed, and not both")
    if options.functions:
        from qcore.cli.functions import report as report_functions

        text, wrong = report_functions(options.functions)
        _print_fitted(text)
        return int(wrong > 0)
    if options.file.is_dir():
        from qcore.cli.declared import report as report_declared

        text, wrong = report_declared(options.file)
        _print_fitted(text)
        return int(wrong > 0)
    from qcore.cli import operations, sum_files
    from qcore.cli import vectors as format_files
    from qcore.cli.layouts import read_rows

    _say_what_is_read(options.file)
    rows = read_rows(options.file)
    vectors = next((one.read(rows) for one in (sum_files, operations) if one.is_of(rows)), None)
    vectors = format_files.read(rows) if vectors is None else vectors
    differing = vectors.differing(options.any_nan)
    _print_fitted(vectors.report(options.file, differing))
    return int(len(differing) > 0)


def _insight(options: argparse.Namespace) -> int:
    from qcore.insight import Record

    _say_what_is_read(options.file)
    record = Record.load(options.file)
    if options.plot:
        from qcore.insight.pictures import draw

        draw(record, options.plot)
        print(f"{options.plot}: {len(record.sites)} sites, {len(record.steps)} steps")
    else:
        from qcore.insight.advice import print_worst

        print_worst(record)
    return 0


def _provenance(options: argparse.Namespace) -> int:
    import json

    from qcore.insight import Record

    _say_what_is_read(options.file)
    print(json.dumps(Record.load(options.file).provenance(), indent=2))
    return 0


def _say_what_is_read(file: Path) -> None:
    """Of a pipe, whose writer may be late."""
    if not is_regular(file):
        print(f"reading {printable(str(file))}, which is no file on a disk", file=sys.stderr)


COMMANDS = ("show", "designs", "vectors", "layer", "emit-c", "emit-smt", "p3109", "check", "insight", "provenance")

_EXIT = """\
exit status: 0; 1 where check finds a difference, or a pipe's reader ends first;
2 after wrong arguments, for files that cannot be read or written, and without
enough memory; 130 after Ctrl-C.
Tables fit the terminal, in a pipe 80 columns, or what COLUMNS says."""


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        program,
        description="Number formats. Without a command: a table of all that have names.",
        epilog=_examples(program, "show e4m3fn", "emit-c e5m2 --rounding stochastic") + "\n\n" + _EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"qbits {__version__}, numerics {NUMERICS}")
    parser.set_defaults(run=_list)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    formats = "a name, or a text such as float(5,2) or scaled(e4m3fn,{-1:32}); docs/formats.md has all kinds"

    show = _command(commands, _show, "a format's properties and values", "e4m3fn", "'fixed(8,4)' mxfp4")
    show.add_argument("format", metavar="FORMAT", nargs="+", type=_format, help=formats)

    designs = _command(commands, _designs, "matrix instructions of chips that accumulators have by name", "", "hopper")
    designs.add_argument("chip", metavar="NAME", nargs="?", default="", help="those that begin with it, such as hopper")

    vectors = _command(
        commands,
        _vectors,
        "write conformance vectors: hard inputs and the law's results",
        "e4m3fn --rounding nearest -o vectors.csv",
        "hopper.wgmma.e4m3 -o unit.mem",
        "add --format e4m3fn --rounding nearest -o add.csv",
    )
    laws = formats + "; or a matrix instruction such as hopper.wgmma.e4m3, or the text of an accumulator"
    laws += "; or an operation: add, multiply, fma, exp, ... of qcore.arithmetic"
    vectors.add_argument("law", metavar="LAW", type=_law, help=laws)
    vectors.add_argument("--format", metavar="FORMAT", type=_format, help="of an operation's operands, which needs it")
    of_result = "of an operation's result (default: that of its operands)"
    vectors.add_argument("--result", metavar="FORMAT", type=_format, help=of_result)
    vectors.add_argument(
        "--rounding",
        metavar="MODE",
        type=_one_of(MODES),
        help=f"the rounding mode, which a format needs: {', '.join(MODES)}",
    )
    _also_mode(vectors)
    vectors.add_argument(
        "--overflow",
        metavar="POLICY",
        type=_one_of(OVERFLOWS),
        help=f"for numbers beyond the range: {', '.join(OVERFLOWS)} (default: the format's)",
    )
    vectors.add_argument(
        "--dtype",
        metavar="DTYPE",
        type=_one_of(CARRIERS),
        help=f"of a format's inputs and outputs: {', '.join(CARRIERS)} (default float32)",
    )
    vectors.add_argument("--terms", metavar="N", type=_natural, help="an accumulator's products in a sum (default 64)")
    text = "an accumulator's sums start at 0: for a unit without a port for an addend"
    vectors.add_argument("--no-addend", action="store_true", help=text)
    text = "formats of an accumulator's operands (default: the instruction's, or float32)"
    vectors.add_argument("--operands", metavar=("A", "B"), nargs=2, type=_format, help=text)
    text = "a format's random inputs, or an accumulator's sums (default 1000)"
    vectors.add_argument("--count", metavar="N", type=_natural, default=1000, help=text)
    vectors.add_argument("--key", metavar="K", type=_key, help="for stochastic rounding (default 0)")
    vectors.add_argument("--seed", metavar="S", type=_natural, default=0, help="of the random inputs (default 0)")
    file = "FILE.csv, FILE.json, or FILE.mem for $readmemh"
    vectors.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help=file)

    layer = _command(
        commands,
        _layer,
        "write vectors of a whole layer: operands, the bits of each step, results",
        "ada.mma.e4m3 --input 16,256 --weight 128,256 -o layer.mem",
        "hopper.mma.f16 --input 1,3,8,8 --weight 16,3,3,3 -o conv.csv",
    )
    text = "a matrix instruction such as hopper.wgmma.e4m3, or the text of an accumulator"
    layer.add_argument("accumulator", metavar="ACCUMULATOR", type=_accumulator, help=text)
    text = "formats of input and weight (default: the instruction's, or float32)"
    layer.add_argument("--operands", metavar=("A", "B"), nargs=2, type=_format, help=text)
    text = "a shape, such as 16,256: a batch of 16; of a convolution 1,3,8,8"
    layer.add_argument("--input", metavar="SHAPE", type=_sizes, help=text)
    text = "a shape, such as 128,256: 128 outputs of 256 inputs; of a convolution 16,3,3,3"
    layer.add_argument("--weight", metavar="SHAPE", type=_sizes, help=text)
    text = "instead of shapes: float32 arrays input, weight and bias, which are rounded to the operands' formats"
    layer.add_argument("--tensors", metavar="FILE.npz", type=Path, help=text)
    text = "of a convolution: an int, or one for each dimension such as 2,1"
    layer.add_argument("--stride", metavar="N", type=_sizes, help=f"{text} (default 1)")
    layer.add_argument("--padding", metavar="N", type=_sizes, help=f"{text} (default 0)")
    layer.add_argument("--dilation", metavar="N", type=_sizes, help=f"{text} (default 1)")
    layer.add_argument("--groups", metavar="N", type=_natural, help="of a convolution (default 1)")
    biases = ("added", "start", "none")
    text = "added in float32 after the sum (default), start: accumulators start at it, or none"
    layer.add_argument("--bias", metavar="HOW", type=_one_of(biases), default="added", help=text)
    layer.add_argument("--result", metavar="FORMAT", type=_format, help="round results to it (default: float32)")
    text = f"the rounding to it: {', '.join(MODES)} (default nearest)"
    layer.add_argument("--rounding", metavar="MODE", type=_one_of(MODES), default="nearest", help=text)
    _also_mode(layer)
    layer.add_argument("--key", metavar="K", type=_key, help="for stochastic accumulators (default 0)")
    layer.add_argument("--seed", metavar="S", type=_natural, default=0, help="of the operands (default 0)")
    layer.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help=file)

    emit = _command(
        commands,
        _emit_c,
        "write rounding, codes, a dot product or an operation as C99 that checks itself",
        "'float(5,2)' --rounding stochastic -o generated",
        "hopper.wgmma.e4m3 -o generated",
        "'accumulator(float16,chunk=4)' --operands e5m2 e4m3fn -o .",
        "multiply --format e4m3fn --result bfloat16 -o generated",
    )
    emit.add_argument("law", metavar="LAW", type=_law, help=laws)
    emit.add_argument("--format", metavar="FORMAT", type=_format, help="of an operation's operands, which needs it")
    emit.add_argument("--result", metavar="FORMAT", type=_format, help=of_result)
    emit.add_argument(
        "--rounding",
        metavar="MODE",
        type=_one_of(MODES),
        help=f"a format's or an operation's rounding mode: {', '.join(MODES)} (default nearest)",
    )
    text = "formats of an accumulator's operands (default: the instruction's, or float32)"
    emit.add_argument("--operands", metavar=("A", "B"), nargs=2, type=_format, help=text)
    text = "write it there, with a header and an import for SystemVerilog (default: print the C)"
    emit.add_argument("-o", "--output", metavar="DIR", type=Path, help=text)

    smt = _command(
        commands,
        _emit_smt,
        "write a format's rounding as SMT-LIB, for a proof that a design has its bits",
        "e4m3fn -o proofs",
        "'accumulator(float16,chunk=1)' --operands e4m3fn e4m3fn",
    )
    text = formats + "; or accumulator(FORMAT,chunk=1): its step"
    smt.add_argument("format", metavar="FORMAT", type=_format_or_accumulator, help=text)
    text = f"a format's rounding mode: {', '.join(MODES)} (default nearest)"
    smt.add_argument("--rounding", metavar="MODE", type=_one_of(MODES), help=text)
    smt.add_argument(
        "--operands", metavar=("A", "B"), nargs=2, type=_format, help="formats of an accumulator's operands"
    )
    text = "of the inputs: float32, or float64 for wider sums (default float32)"
    smt.add_argument("--dtype", metavar="DTYPE", type=_one_of(("float32", "float64")), default="float32", help=text)
    smt.add_argument("-o", "--output", metavar="DIR", type=Path, help="write it there (default: print it)")

    text = "what is provided of IEEE P3109's interim report v4.0"
    declarations = _command(commands, _p3109, text, "--declare -o declarations")
    text = "write Configurations, Profiles, Constraints and Kappas.yaml"
    declarations.add_argument("--declare", action="store_true", required=True, help=text)
    declarations.add_argument("-o", "--output", metavar="DIR", type=Path, help="write them there (default: print them)")

    check = _command(
        commands, _check, "compare results in a file of vectors with the law", "vectors.csv", "--functions qtorch"
    )
    check.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        type=Path,
        help="vectors with results replaced; or a folder of declarations of P3109",
    )
    packages = ("qcore", "qtorch", "qjax")
    text = "instead of a file: exp, log, ... of qcore, qtorch or qjax on this machine, eager and compiled"
    check.add_argument("--functions", metavar="PACKAGE", type=_one_of(packages), help=text)
    check.add_argument("--any-nan", action="store_true", help="any NaN will do where the law has one")

    insight = _command(
        commands, _insight, "the worst sites of a recorded run, with advice", "run.json", "run.json --plot run.svg"
    )
    insight.add_argument("file", metavar="FILE", type=Path, help="a record, as Record.save wrote it")
    insight.add_argument(
        "--plot", metavar="FILE", type=Path, help="instead of the table, a page of pictures: FILE.svg or FILE.png"
    )
    text = "what made a recorded run, as JSON: versions, settings, formats, a hash"
    provenance = _command(commands, _provenance, text, "run.json")
    provenance.add_argument("file", metavar="FILE", type=Path, help="a record, as Record.save wrote it")
    return parser


def _check_command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Names the nearest command, or the format that stands in the place of a command."""
    given = arguments[0] if arguments else "-"
    if given.startswith("-") or given in COMMANDS:
        return
    try:
        hint = f"`{parser.prog} show {shlex.quote(_format(given))}` shows this format; "
    except argparse.ArgumentTypeError:
        near = get_close_matches(given, COMMANDS, 1)
        hint = f"near it is {near[0]}; " if near else ""
    parser.error(f"COMMAND={quoted(given)}; {hint}allowed are {', '.join(COMMANDS)}")


def _command(
    commands: Any, run: Callable[[argparse.Namespace], int], text: str, *examples: str
) -> argparse.ArgumentParser:
    """The parser of the command that a function runs, whose name it has."""
    name = run.__name__.removeprefix("_").replace("_", "-")
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.epilog = _examples(parser.prog, *examples)
    parser.set_defaults(run=run)
    return parser


def _also_mode(parser: argparse.ArgumentParser) -> None:
    """Reads the earlier name of --rounding."""
    parser.add_argument(
        "--mode", dest="rounding", type=_one_of(MODES), default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )


def _examples(program: str, *arguments: str) -> str:
    return "\n".join(["examples:", *(f"  {program} {one}" for one in arguments)])


def _one_of(allowed: Iterable[str]) -> Callable[[str], str]:
    """The reader of an argument with some allowed words."""

    def read(text: str) -> str:
        if text not in words:
            near = get_close_matches(text, words, 3)
            hint = f"near it are {', '.join(near)}; " if near else ""
            raise argparse.ArgumentTypeError(f"{quoted(text)}; {hint}allowed are {', '.join(words)}")
        return text

    words = tuple(allowed)
    return read


def _format(text: str) -> str:
    """The text of the format that a text stands for."""
    try:
        return check_number(text, "format").text
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _format_or_accumulator(text: str) -> str:
    """The text of the format, or of the accumulator, that a text stands for."""
    from qcore.linalg.accumulator import is_accumulator

    return _accumulator(text) if is_accumulator(text) else _format(text)


def _law(text: str) -> str:
    """An operation's name, or the text of a format or an accumulator."""
    from qcore.cli.operations import NAMES

    return text if text in NAMES else _format_or_accumulator(text)


def _accumulator(text: str) -> str:
    """The text of the accumulator that a text stands for."""
    from qcore.linalg.accumulator import check_accumulator

    try:
        return check_accumulator(text).text
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{quoted(text)}; allowed is an int >= 0")
    return int(text)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_natural(size) for size in text.split(","))


def _key(text: str) -> int:
    key = _natural(text)
    try:
        check_seed(key)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return key


if __name__ == "__main__":
    sys.exit(main(program="python -m qcore"))
