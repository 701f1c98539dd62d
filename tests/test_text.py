"""Sources: text is UTF-8 wherever the system's own encoding is another one, and no tuple is there for its layout."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OPENS = {"open", "read_text", "write_text"}
BINARY = {repr(mode) for mode in ("rb", "wb", "xb", "ab", "rb+")}
FOLDERS = "qcore", "qtorch", "qjax", "benchmarks", "examples", "website"


def found_in(folder, has, lines):
    """The lines of a folder's files, as texts; the file that has no match of `has` is not parsed."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if re.search(has, source):
            yield from (f"{path.relative_to(ROOT).as_posix()}:{line}" for line in lines(ast.parse(source)))


def without_encoding(tree):
    """The lines of calls that read or write text in the encoding of the system."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        is_binary = "open" in name and any(ast.unparse(one) in BINARY for one in node.args)
        is_ours = not owner and name == "write_text"  # of `qcore.files`
        named = any(keyword.arg == "encoding" for keyword in node.keywords)
        if name in OPENS and owner not in ("os", "archive") and not is_ours and not is_binary and not named:
            yield node.lineno


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_is_opened_with_an_encoding(folder):
    assert [*found_in(folder, "|".join(OPENS), without_encoding)] == []


def test_calls_without_an_encoding_are_found():
    source = 'open("a")\npath.read_text()\npath.write_text("b")\nopen("a", "rb")\npath.open("xb")\nos.open("a", 0)\n'
    assert list(without_encoding(ast.parse(source))) == [1, 2, 3]


STACK = {"_getframe", "currentframe", "f_back", "stack", "getouterframes"}  # of `inspect`, `sys` and frames


def reads_of_the_stack(tree):
    """The lines that go from a function to the function that called it."""
    for node in ast.walk(tree):
        is_read = isinstance(node, ast.Attribute) and node.attr in STACK
        owner = ast.unparse(node.value) if is_read else ""
        if is_read and (node.attr == "f_back" or owner in ("sys", "inspect")):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module in ("sys", "inspect"):
            yield from (node.lineno for one in node.names if one.name in STACK)


@pytest.mark.parametrize("folder", ["qcore", "qtorch", "qjax"])
def test_the_stack_is_read_in_one_place(folder):
    found = found_in(folder, r"\b(f_back|sys|inspect)\b", reads_of_the_stack)
    assert [one for one in found if not one.startswith("qcore/notices.py:")] == [], "`frames` of qcore.notices reads it"


def test_reads_of_the_stack_are_found():
    source = "sys._getframe(1)\nframe.f_back\ninspect.stack()\nnp.stack(x)\nfrom inspect import currentframe\n"
    assert sorted(reads_of_the_stack(ast.parse(source))) == [1, 2, 3, 5]


def unpacked_displays(tree):
    """The lines of tuples, lists and sets that are unpacked where they stand: their elements could stand there."""
    displays = ast.Tuple | ast.List | ast.Set
    return [
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Starred) and isinstance(node.value, displays)
    ]


@pytest.mark.parametrize("folder", [*FOLDERS, pytest.param("tests", marks=pytest.mark.heavy)])
def test_no_tuple_is_there_for_the_layout_of_the_source(folder):
    found = [*found_in(folder, r"\*[(\[{]", unpacked_displays)]  # as ruff writes them
    assert not found, 'write the elements, or one text: "a b c".split()'


def test_unpacked_displays_are_found():
    source = 'a = (\n    *("a", "b"),\n    *names,\n    *(x for x in names),\n)\nf(*[1, 2])\ng(*args)\n'
    assert unpacked_displays(ast.parse(source)) == [2, 6]


IN_TORCH = "import locale, qtorch; print(locale.getpreferredencoding(False), qtorch.parse('e5m2').bits)"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-m", "qcore", "show", "mxfp8_e4m3"], "mxfp8_e4m3"),
        pytest.param(["-c", IN_TORCH], "ANSI_X3.4-1968 8", marks=pytest.mark.heavy),
    ],
    ids=["qcore", "qtorch"],
)
def test_packages_in_a_locale_that_is_not_utf8(options, said):
    variables = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, *options]
    found = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, encoding="ascii", check=False)
    assert (found.returncode, said in found.stdout) == (0, True), found.stderr
