"""Wrong calls of all public functions: a docstring's example is a right call, of which each argument is replaced.

A wrong call may raise a ValueError, a TypeError, or what the docstring names under Raises, whose message has the
argument's name. Anything else is a raw error. Values that happen to be allowed raise nothing, which is right, too.
"""

from __future__ import annotations

import ast
import copy
import doctest
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from typing import Any, NamedTuple

import numpy as np

ROOMS = {
    "qcore": (
        "",
        "arithmetic",
        "distributed",
        "engines",
        "linalg",
        "affine",
        "affine.functional",
        "insight",
        "reproducible",
        "recipes",
        "testing",
    ),
    "qtorch": (
        "",
        "recipes",
        "insight",
        "arithmetic",
        "distributed",
        "engines",
        "linalg",
        "nn",
        "nn.intrinsic",
        "nn.intrinsic.qat",
        "nn.intrinsic.quantized",
        "nn.intrinsic.quantized.dynamic",
        "nn.qat",
        "nn.quantized",
        "nn.quantized.dynamic",
        "nn.quantized.functional",
        "optim",
        "quant",
        "quantization",
        "reproducible",
    ),
    "qjax": (
        "",
        "recipes",
        "insight",
        "arithmetic",
        "distributed",
        "engines",
        "linalg",
        "nnx",
        "nnx.intrinsic",
        "nnx.quantized",
        "nnx.quantized.dynamic",
        "optim",
        "quant",
        "quantization",
        "quantization.functional",
        "reproducible",
    ),
}


# What NumPy, Python and torch say of values that nobody looked at.
RAW = "truth value of an array", "Exceeds the limit", "without overflow", "Could not run 'aten::", "supported dimension"


class Call(NamedTuple):
    """A right call of a public function or class, as its docstring's example makes it."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Outcome(NamedTuple):
    """A wrong call that ended in an error without the argument's name, or in a raw one."""

    name: str
    argument: str
    value: str
    error: str
    raw: bool


def public(package: str) -> dict[str, Any]:
    """All functions and classes in the `__all__` of a package's rooms, once each, by their full names."""
    found: dict[int, tuple[str, Any]] = {}
    for room in ROOMS[package]:
        module = import_module(f"{package}.{room}" if room else package)
        for name in getattr(module, "__all__", [name for name in vars(module) if name[0] != "_"]):
            thing = getattr(module, name)
            # The arguments of a class that inherits flax's `__init__` are flax's.
            maker = getattr(getattr(thing, "__init__", None), "__module__", "")
            ours = inspect.isfunction(thing) or (inspect.isclass(thing) and not maker.startswith("flax."))
            if ours and thing.__module__.startswith(package):
                found.setdefault(id(thing), (f"{module.__name__}.{name}", thing))
    return dict(found.values())


def traced(arguments: Any) -> bool:
    """True if a program of jax.jit makes the call: its arrays are of no use outside of it."""
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments))


@cache
def recorded(name: str, function: Any) -> list[Call]:
    """The first right call of a function that its example makes."""
    calls: list[Call] = []
    short = name.rsplit(".", 1)[1]
    module = inspect.getmodule(function)
    scope = dict(vars(module)) if module else {}

    def recorder(*args: Any, **kwargs: Any) -> Any:
        if not traced((args, kwargs)):
            calls.append(Call(name, function, args, kwargs))
        return function(*args, **kwargs)

    for example in doctest.DocTestParser().get_examples(inspect.getdoc(function) or ""):
        if example.options.get(doctest.SKIP):
            continue
        scope[short] = recorder
        try:
            with redirect_stdout(StringIO()):
                exec(compile(ast.parse(example.source), name, "exec"), scope)  # the examples are ours
        except Exception:
            break  # a class in place of which a function stands, as in isinstance
        if calls:
            break
    return calls[:1]


@cache
def common_values() -> dict[str, Any]:
    return {
        "None": None,
        "text": "no such thing",
        "bytes": b"x",
        "negative": -1,
        "zero": 0,
        "huge": 10**30,
        "very negative": -(10**30),
        "fraction": 0.5,
        "NaN": float("nan"),
        "infinity": float("inf"),
        "complex": 1j,
        "flag": True,
        "list": [],
        "list of texts": ["x", "y"],
        "tuple": (1, 2, 3, 4, 5, 6, 7),
        "dict": {"x": 1},
        "object": object(),
        "class": int,
        "numpy float64": np.zeros((3, 1, 2)),
        "numpy float32": np.ones((2, 3, 5), np.float32),
        "numpy complex": np.ones((2, 2), np.complex64),
        "numpy object": np.array([None, "x"]),
        "numpy int64": np.arange(7),
        "numpy of no dimension": np.float32(1.5),
        "numpy empty": np.zeros((0,), np.float32),
    }


@cache
def torch_values() -> dict[str, Any]:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several of these are beta or deprecated in torch
        return _torch_values(torch)


def _torch_values(torch: Any) -> dict[str, Any]:
    return {
        "float32 of another shape": torch.ones(2, 3, 5),
        "float32 of no dimension": torch.tensor(1.5),
        "float64": torch.ones(3, dtype=torch.float64),
        "int64": torch.arange(7),
        "bool": torch.ones(2, 2, dtype=torch.bool),
        "complex": torch.ones(2, 2, dtype=torch.complex64),
        "empty": torch.ones(0),
        "meta": torch.ones(2, 2, device="meta"),
        "sparse": torch.eye(2).to_sparse(),
        "sparse csr": torch.eye(2).to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "quantized": torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.quint8),
        "dtype": torch.float32,
        "module": torch.nn.Identity(),
    }


@cache
def jax_values() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from jax.experimental import sparse

    return {
        "float32 of another shape": jnp.ones((2, 3, 5)),
        "float32 of no dimension": jnp.float32(1.5),
        "float16": jnp.ones(3, jnp.float16),
        "int32": jnp.arange(7),
        "bool": jnp.ones((2, 2), bool),
        "complex": jnp.ones((2, 2), jnp.complex64),
        "empty": jnp.ones(0),
        "sparse": sparse.BCOO.fromdense(jnp.eye(2)),
        "shape and dtype": jax.ShapeDtypeStruct((2, 2), jnp.float32),
        "key": jax.random.key(0),
        "dtype": jnp.float32,
    }


def values(package: str) -> dict[str, Any]:
    more = {"qcore": dict, "qtorch": torch_values, "qjax": jax_values}[package]()
    if (
        package != "qjax"
    ):  # whose moves are jnp's, with jnp's errors; and XLA ends the process for tiles of so many axes
        more |= {"of 5,000 digits": 10**5000, "beyond float32": 1e308, "numpy bools": np.array([True, False])}
        more["numpy of 64 axes"] = np.ones((1,) * 64, np.float32)
    return common_values() | more


def signature_of(function: Any) -> inspect.Signature:
    """A function's signature, or that of a class's __init__: a metaclass, as flax has, hides it behind *args."""
    if not inspect.isclass(function) or "args" not in inspect.signature(function).parameters:
        return inspect.signature(function)
    _, *parameters = inspect.signature(function.__init__).parameters.values()
    return inspect.Signature(parameters)


def wrong_calls(call: Call, package: str) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(argument, value's name, the call with it in the argument's place) for each argument and value."""
    try:
        signature = signature_of(call.function)
        bound = signature.bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        return
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name == "self":
            continue
        for title, value in values(package).items():
            others = {name: value}

            def wrong(others: dict[str, Any] = others) -> Any:
                # A wrong call that works may change a model, which the next one must not see.
                models = {p: copy.deepcopy(x) for p, x in bound.arguments.items() if hasattr(x, "named_modules")}
                arguments = {**bound.arguments, **models, **others}
                made = inspect.BoundArguments(
                    signature, {p: arguments[p] for p in signature.parameters if p in arguments}
                )
                return call.function(*made.args, **made.kwargs)

            yield name, title, wrong


def outcome(name: str, argument: str, title: str, call: Callable[[], Any], raises: str) -> Outcome | None:
    """What is wrong with the way in which a call fails; None if nothing is."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        try:
            call()
        except Exception as error:
            kinds = tuple(kind.__name__ for kind in type(error).__mro__)
            documented = any(re.search(rf"\b{kind}\b", raises) for kind in kinds[:1])
            ours = isinstance(error, ValueError | TypeError) or documented
            raw = not ours or any(text in str(error) for text in RAW)
            named = re.search(rf"\b{re.escape(argument)}\b", str(error)) is not None
            if raw or not named:
                return Outcome(name, argument, title, f"{type(error).__name__}: {str(error)[:160]}", raw)
    return None


def raises_of(function: Any) -> str:
    """The part of a docstring that says which errors there are."""
    found = re.search(r"Raises:\n(.*?)(\n\S|\n\n|\Z)", inspect.getdoc(function) or "", re.S)
    return found[1] if found else ""


def survey(package: str, rooms: tuple[str, ...], every: int = 1, functions: int = 1) -> tuple[int, list[Outcome]]:
    """The number of wrong calls in rooms of a package, and those that failed in a wrong way.

    One of `every` calls of one of `functions` functions is made.
    """
    count, place, found = 0, 0, list[Outcome]()
    for name, function in list(public(package).items())[::functions]:
        if not name.startswith(rooms):
            continue
        for call in recorded(name, function):
            for argument, title, wrong in wrong_calls(call, package):
                place += 1
                if place % every:
                    continue
                count += 1
                one = outcome(name, argument, title, wrong, raises_of(function))
                found += [] if one is None else [one]
    return count, found
