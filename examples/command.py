"""The command line of the examples: options with their defaults, clear errors, a first line that says what is done."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

Number = TypeVar("Number", int, float)
console = Console(highlight=False, soft_wrap=True)  # text in a file has whole lines


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help with the lines of the description as they are, and with the defaults of options."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the description of an example, and the options with their defaults."""
    return argparse.ArgumentParser(description=description, formatter_class=_Help)


def parsed(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Reads the options, and prints in one line what the example does: the first line of its description."""
    options = parser.parse_args(argv)
    console.print((parser.description or "").partition("\n")[0], style="bold")
    return options


def at_least(least: Number) -> Callable[[str], Number]:
    """A type of arguments: ints of at least an int, or numbers of at least a float."""
    kind, kinds = type(least), "ints" if isinstance(least, int) else "numbers"

    def read(value: str) -> Number:
        try:
            found = kind(value)
        except ValueError:
            found = None
        if found is None or not found >= least:
            raise argparse.ArgumentTypeError(f"{value!r}; allowed are {kinds} of at least {least}")
        return found

    return read


def file_of(*endings: str) -> Callable[[str], str]:
    """A type of arguments: files with one of these endings."""

    def read(value: str) -> str:
        if not value.endswith(endings):
            raise argparse.ArgumentTypeError(f"{value!r}; allowed are files that end in {', '.join(endings)}")
        return value

    return read


def folder(value: str) -> Path:
    """A type of arguments: folders that exist."""
    if not Path(value).is_dir():
        raise argparse.ArgumentTypeError(f"{value!r} is not there; allowed are folders that exist")
    return Path(value)
