"""Arguments of the benchmarks' command lines: each is a function of a text, and says what is allowed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from qcore import Number
from qcore.formats.block import BlockNumber
from qcore.formats.number import check_number
from qcore.law.carrier import FLOAT32


def count_of(what: str, least: int) -> Callable[[str], int]:
    """Reads an int that is not below the least."""

    def read(text: str) -> int:
        try:
            count = int(text)
        except ValueError:
            count = least - 1
        if count < least:
            raise argparse.ArgumentTypeError(f"{text}: allowed are {least} {what} and more")
        return count

    return read


def output_file(text: str) -> Path:
    """Reads the name of a file that can be written: it is better to know before the work than after it."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; allowed is a file's name")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def refuse_record(parser: argparse.ArgumentParser, path: Path | None) -> None:
    """Ends a program whose times would replace a record, a file with a layout, which runs of hours go on from."""
    if path is not None and path.is_file() and '"layout"' in path.read_text(encoding="utf-8")[:100]:
        parser.error(f"argument --json: {path} is a record that runs go on from; allowed is another file for times")


def elementwise(text: str) -> Number:
    """Reads a format of single numbers that float32 can hold."""
    try:
        number = check_number(text, "format")
        number.reduce(FLOAT32)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if isinstance(number, BlockNumber):
        raise argparse.ArgumentTypeError(f"format={text!r} has blocks; allowed are formats of single numbers")
    return number
