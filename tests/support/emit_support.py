"""Compilers of the C that `qbits emit-c` writes."""

import re
import shutil

import pytest

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
COMPILERS = {
    "gcc": ["gcc", *STRICT],
    "clang": ["clang", *STRICT],
    "gcc, undefined": ["gcc", *STRICT, "-fsanitize=undefined", "-fno-sanitize-recover=undefined"],
}


def available():
    """The compilers that are installed; one with a sanitizer needs its library. An ordinary run takes GCC alone."""
    for name, command in COMPILERS.items():
        missing = shutil.which(command[0]) is None
        marks = [pytest.mark.skipif(missing, reason="not installed")] + [pytest.mark.heavy] * (name != "gcc")
        yield pytest.param(command, id=name, marks=marks)


def with_another_result(text):
    """The file with another expected result."""
    head, tail = text.split(" expected[", 1)
    return f"{head} expected[{re.sub('0x........', '0x12345678', tail, count=1)}"
