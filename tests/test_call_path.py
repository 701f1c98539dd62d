"""A call passes few functions before the kernel, and docs/inside.md has their names."""

import re
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import pytest
import torch
from calls import calls_of

import qjax
import qtorch

ROOT = Path(__file__).parent.parent
SECTION = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")
LISTS = {
    call: re.findall(r"^\d+\. `(\w+)` in `([\w/.]+)`: .", steps, re.MULTILINE)
    for call, steps in re.findall(
        r"^`((?:qtorch|qjax)\.[^`]+)`[^\n]*:\n\n((?:\d+\. [^\n]+\n?)+)", SECTION, re.MULTILINE
    )
}
INPUTS = {"qtorch": lambda: torch.linspace(-3, 3, 64), "qjax": lambda: jnp.linspace(-3, 3, 64)}


def functions_entered(call):
    """The names of our functions that a call enters, in order."""
    ours = [ROOT / package for package in ("qcore", "qtorch", "qjax")]
    return [code.co_name for code in calls_of(call) if any(map(Path(code.co_filename).is_relative_to, ours))]


def test_both_packages_are_listed():
    assert {call.split("(")[0] for call in LISTS} == {"qtorch.float_quantize", "qjax.float_quantize"}


@pytest.mark.parametrize("call", LISTS)
def test_lists_are_what_a_call_enters(call):
    x = INPUTS[call.split(".")[0]]()
    program = compile(call, "call", "eval")
    names = {"x": x, "qtorch": qtorch, "qjax": qjax}
    for _ in range(2):  # compiles and remembers
        eval(program, names)
    entered = functions_entered(lambda: eval(program, names))
    assert entered == [name for name, _ in LISTS[call]]
    assert len(entered) <= 8


@pytest.mark.parametrize("call", LISTS)
def test_files_have_these_functions(call):
    for name, file in LISTS[call]:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def product():
    a, b = torch.ones(8, 16, requires_grad=True), torch.ones(16, 4, requires_grad=True)
    return lambda: qtorch.linalg.matmul(a, b, operands=("e4m3fn", "e4m3fn")).backward(torch.ones(8, 4))


def reproducible_step(optimizer):
    """Two linear layers, relu, cross entropy and an optimizer."""
    room = qtorch.reproducible
    model = room.convert(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)))
    optimizer = getattr(room, optimizer)(model.parameters(), lr=0.1)
    x, target = torch.ones(5, 8), torch.arange(5) % 4

    def step():
        optimizer.zero_grad()
        room.cross_entropy(model(x), target).backward()
        optimizer.step()

    return step


@pytest.mark.parametrize(
    ("make", "most"), [(product, 120), *((partial(reproducible_step, name), 150) for name in ("SGD", "Adam", "AdamW"))]
)
def test_training_enters_few_functions(make, most):
    """With their gradients; Python's calls take longer than small kernels."""
    call = make()
    for _ in range(2):  # compiles and remembers
        call()
    assert 10 < len(functions_entered(call)) <= most
