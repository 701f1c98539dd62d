"""Messages quote at most 200 characters of a user's value: the sources are read for `!r` without a bound."""

import ast
from pathlib import Path

import pytest

from qcore.arguments import MOST_QUOTED, quoted

ROOT = Path(__file__).parent.parent

ALLOWED = {
    "qcore/lazy.py: package": "the name of a package of this library",
    "qcore/lazy.py: name": "the name of an attribute, as in Python's own message",
    "qtorch/optim/low_precision.py: name": "the name of an attribute, as in Python's own message",
    "qjax/reproducible/__init__.py: __name__": "the name of a package of this library",
    "qjax/reproducible/__init__.py: name": "the name of an attribute, as in Python's own message",
    # These are not messages.
    "qtorch/nn/quantized/dynamic/rnn.py: self.bidirectional": "the repr of a layer, with a bool",
}


def unbounded(tree):
    """The expressions that f-strings write by `!r` or repr() at full length; `!r:.80` and `quoted` have a bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec is None:
            by_call = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "repr"
            if node.conversion == ord("r") or by_call:
                yield ast.unparse(node.value)


def test_values_are_quoted():
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {expression}"
        for package in ("qcore", "qtorch", "qjax")
        for path in (ROOT / package).rglob("*.py")
        for source in [path.read_text(encoding="utf-8")]
        if "!r" in source or "repr(" in source
        for expression in unbounded(ast.parse(source))
    }
    assert found == {*ALLOWED}


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("f'x={x!r}; allowed'", ["x"]),
        ("f'x={self.x!r}, y={repr(y)}'", ["self.x", "repr(y)"]),
        ("f'x={x!r:.80}, {quoted(x)}, {x}'", []),
    ],
)
def test_an_unbounded_value_is_found(program, found):
    assert [*unbounded(ast.parse(program))] == found


def test_a_long_value_is_cut():
    assert quoted("x" * 198) == repr("x" * 198)
    assert len(quoted("x" * 199)) == MOST_QUOTED == 200
