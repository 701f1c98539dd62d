"""`register_format`: texts of a user's own classes, and what is refused."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, make_dataclass
from threading import Barrier
from typing import Literal

import pytest
from own_formats import Capped, Levels

from qcore import FixedPoint, FloatingPoint, Number, Quantization, parse, register_format


@dataclass(frozen=True)
class Fields(Number):
    """A format with a field of each type."""

    inner: Number
    words: Literal["slow", "fast"] = "slow"
    width: int | None = None
    flag: bool = False
    exponent: int = 0

    def reduce(self, carrier):
        return self.inner.reduce(carrier)


register_format("fields", Fields)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Capped(4, 3, 119), "capped(4,3,119)"),
        (Levels(5), "levels(5)"),
        (Levels(5, -2), "levels(5,exponent=-2)"),
        (Fields(FixedPoint(8, 4)), "fields(fixed(8,4))"),
        (
            Fields(parse("e4m3fn:saturate"), "fast", 3, True, 2),
            "fields(e4m3fn:saturate,words=fast,width=3,flag=True,exponent=2)",
        ),
        (Fields(Capped(2, 1, 5), width=7), "fields(capped(2,1,5),width=7)"),
    ],
)
def test_written_and_read(number, text):
    assert number.text == str(number) == text
    assert parse(text) == number == pickle.loads(pickle.dumps(number))
    assert Quantization(text).forward_number == number


def test_none_is_read():
    assert parse("fields(float(5,2),fast,None,True)") == Fields(FloatingPoint(5, 2), "fast", None, True)


class Plain(Number):
    """Not a dataclass."""


@dataclass
class Thawed(Number):
    """Not frozen."""


@dataclass(frozen=True)
class Real(Number):
    """With a field that texts cannot have."""

    step: float


@dataclass(frozen=True)
class Other(Number):
    """Another class."""

    def reduce(self, carrier):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("a b", Other, "name='a b'; allowed are letters"),
        (3, Other, "name=3; allowed are letters"),
        ("float", Other, "name='float' belongs to another format"),
        ("E4M3", Other, "name='E4M3' belongs to another format"),
        ("bf8", Other, "name='bf8' belongs to another format"),
        ("FixedPoint", Other, "name='FixedPoint' belongs to another format"),
        (
            "levels",
            Other,
            "name='levels' belongs to another format; allowed is a name that means nothing yet, or a new process",
        ),
        ("steps", Levels, "name='steps'; allowed for Levels is levels"),
        ("other", Plain, "kind=.*Plain.*; allowed is a subclass of Number that is a dataclass with frozen=True"),
        ("other", Thawed, "kind=.*Thawed.*; allowed is a subclass of Number"),
        ("other", make_dataclass("Foreign", [], frozen=True), "kind=.*Foreign.*; allowed is a subclass of Number"),
        ("other", 5, "kind=5; allowed is a subclass of Number"),
        ("other", Real, "step has the type .*float.*; allowed are int, bool, Number and Literal of words"),
    ],
)
def test_refused(name, kind, message):
    with pytest.raises((TypeError, ValueError), match=message):
        register_format(name, kind)
    assert "steps(" not in _allowed()
    assert "other(" not in _allowed()


def _allowed():
    with pytest.raises(ValueError, match="allowed here are") as caught:
        parse("nothing")
    return str(caught.value)


def test_the_same_twice():
    register_format("levels", Levels)
    assert "levels(most)" in _allowed()


def test_what_is_not_registered_has_no_text():
    with pytest.raises(TypeError, match=r"has no text; allowed are .*, and a class of your own after register_format"):
        _ = Other().text


def test_errors_point_into_texts_of_ones_own():
    with pytest.raises(ValueError, match=r"text='levels\(x\)': allowed here is an int\n    levels\(x\)\n           \^"):
        parse("levels(x)")
    with pytest.raises(ValueError, match=r"missing here is man"):
        parse("capped(4)")


def test_from_several_threads():
    """Names and errors, which list all names, at the same time."""
    kinds = [make_dataclass(f"Thread{i}", [("width", int)], bases=(Number,), frozen=True) for i in range(8)]
    for kind in kinds:
        kind.__abstractmethods__ = frozenset()
    barrier = Barrier(len(kinds))

    def work(i):
        barrier.wait()
        for _ in range(50):
            register_format(f"thread{i}", kinds[i])
            assert parse(f"thread{i}(3)") == kinds[i](3)
            _allowed()
        return True

    with ThreadPoolExecutor(len(kinds)) as pool:
        assert all(pool.map(work, range(len(kinds))))


def test_another_process_reads_texts_after_the_module():
    """A pickle imports the module by itself; a text does not."""
    program = (
        "import pickle, sys, qcore\n"
        "try: qcore.parse('levels(5)')\n"
        "except ValueError as error: assert 'is read in a process that called register_format' in str(error)\n"
        f"assert pickle.loads({pickle.dumps(Levels(5))!r}) == qcore.parse('levels(5)')\n"
        "print(qcore.parse('levels(5)'))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "levels(5)\n"
