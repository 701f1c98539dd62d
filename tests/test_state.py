"""State belongs to a call: what modules and classes hold is written once, where it is made.

The packages are read for writes to what outlives a call: names of modules, attributes and items of objects that modules
hold, of classes, counters, and the state of a thread. Caches by `functools` are none of these. What is allowed is
listed with its reason.
"""

import ast
import inspect
import threading
from collections.abc import MutableMapping, MutableSequence, MutableSet
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
CHANGES = set(
    "append appendleft extend insert add update setdefault pop popleft popitem remove discard clear sort "
    "reverse move_to_end".split()
)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
MAKING = {"__init__", "__post_init__", "__new__", "__setstate__"}

ALLOWED = {
    # Caches and what must not be freed: what is kept depends on its key alone.
    "qcore/formats/text.py: FormatTexts.known": "a cache: formats by text, in a dictionary that Dynamo can look into",
    "qjax/_rounding/scopes.py: FormatTexts.known": "the same: a long text's format by the digest of the text",
    "qtorch/_kernels/store.py: _methods": "memory that Python's functions point to; nobody looks there",
    "qtorch/insight/tensors.py: _kept": "memory that kernels point to; nobody looks there",
    # Tables that are filled while the module is imported that has what they name.
    "qcore/formats/text.py: FormatTexts.learn": "the parser of formats needs all formats; qcore.formats imports both",
    "qcore/formats/text.py: FormatTexts.write": "the same",
    "qcore/formats/text.py: FormatTexts.name_of_dtype": "the same",
    "qcore/binding.py: cls": "a package's class gets its functions while it is made",
    "qcore/formats/text.py: _KINDS": "a kind of text is registered by the module that defines the kind. A ContextVar "
    "does not reach threads of torch's engine and of data loaders, and compiled programs outlive a context",
    "qcore/formats/text.py: _NUMBER_KINDS": "the same",
    "qcore/formats/text.py: _KIND_OF": "the same",
    "qcore/formats/text.py: _ELSEWHERE": "imports of the modules that register kinds, added by the package above them",
    "qcore/lazy.py: _importing": "imports that are under way in this process; a fork waits for them",
    "qcore/lazy.py: sys.modules": "a cache: a name that a package has of another module, which is always the same",
    "qcore/affine/rows.py: OPERATIONS": "filled by decorators of the functions that it names",
    "qtorch/nn/quantized/base.py: cls._law": "a layer's class gets what its row says while it is made",
    "qtorch/nn/quantized/base.py: cls.settings": "the same",
    "qtorch/nn/quantized/base.py: cls.__doc__": "the same",
    "qjax/nnx/activations.py: cls.__doc__": "the same",
    "qjax/_models.py: _UNNAMED": "a class is registered where it is defined",
    "qtorch/reproducible/modules/registry.py: DEFINED": "filled by decorators of the functions that it names",
    "qtorch/reproducible/modules/registry.py: METHODS": "the same, by name",
    "qjax/linalg/attention.py: ad.primitive_jvps": "JAX's table of rules, of a primitive that the module defines",
    "qjax/linalg/attention.py: ad.primitive_transposes": "JAX's table of rules, of a primitive that the module defines",
    "qjax/linalg/attention.py: batching.primitive_batchers": "JAX's table of rules, of a primitive of the module",
    "qjax/linalg/operator.py: ad.primitive_jvps": "JAX's table of rules, of a primitive that the module defines",
    "qjax/linalg/operator.py: ad.primitive_transposes": "JAX's table of rules, of a primitive that the module defines",
    "qjax/linalg/operator.py: batching.primitive_batchers": "JAX's table of rules, of a primitive of the module",
    "qjax/linalg/states.py: ad.primitive_jvps": "JAX's table of rules, of a primitive that the module defines",
    # Counters of which only that numbers differ, or rise, counts: calls of others between two calls change nothing.
    "qcore/reproducible/differentiable.py: _numbers": "names of laws, which only have to differ",
    "qtorch/_rounding/keys.py: _serials": "tags of draws, which only have to differ",
    "qjax/nnx/quantization/observing.py: self._places": "which of a model's observers ran before another",
    # State of a process.
    "qtorch/_kernels/store.py: global _one_at_a_time": "a lock; a forked process has one of its own",
    # State of a call: of its thread, or of its context.
    "qjax/engines/functions.py: jax.nn.dot_product_attention": "another for the time of a call, under a lock: "
    "JAX has no hook. It passes calls of other threads on",
    "qjax/insight/watching.py: _digests of a context": "whether a watch that is traced keeps digests",
    "qjax/reproducible/modules/guard.py: _tracing of a context": "whether a guard traces a model",
    "qtorch/_rounding/keys.py: _drawn of a thread": "memory for a drawn key, written before each use",
    "qcore/exchange/limits.py: _OF_RUN of a context": "what the model of this call may take of memory and steps",
    "qcore/notices.py: _shown of a context": "whether a bar is on the terminal, which has place for one",
    "qcore/pictures.py: _width of a context": "the width of the figures that are drawn now, for a desk or a phone",
    "qtorch/engines/layers.py: _STATE of a thread": "whether a function of an inner layer runs, which rounds it",
    "qtorch/engines/layers.py: _STATE.inside": "the same",
    "qtorch/_exported.py: NEAR of a context": "whether the file of this call need not be exact",
    "qtorch/_exported.py: WANTED of a context": "whether the model of this call is traced for ONNX",
    "qtorch/_affine/programs.py: _RUNNING of a context": "the law that the operator of this call computes",
    "qtorch/recipes/coverage.py: _running of a context": "the first call of a lowered model, which is measured now",
    "qtorch/recipes/modes.py: listing of a context": "the table of products that this run fills, if any",
    "qtorch/linalg/operator.py: OBSERVER of a context": "who watches the products of this call",
    "qtorch/linalg/delayed.py: _RUNNING of a context": "the backward pass that runs now, which torch's engine keeps",
    "qtorch/reproducible/modules/guard.py: STATE of a thread": "whether the guard of this call lets functions be",
    "qtorch/reproducible/modules/guard.py: STATE.depth": "the same",
}


def chain_of(node):
    """The names of a chain of attributes, items and classes: ["a", "b"] of a.b[0]; none if a call is at its root."""
    names = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        names += [node.attr] if isinstance(node, ast.Attribute) else []
        node = node.value
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("type", "vars")
        and node.args
    ):
        return [*chain_of(node.args[0]), *(["__class__"] if node.func.id == "type" else []), *reversed(names)]
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def targets_of(node):
    """What a statement writes, each a name or a chain."""
    if isinstance(node, ast.Assign | ast.Delete):
        found = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
        found = [node.target]
    elif isinstance(node, ast.With):
        found = [item.optional_vars for item in node.items if item.optional_vars]
    else:
        found = []
    while found:
        one = found[0]
        found = found[1:]
        if isinstance(one, ast.Tuple | ast.List):
            found = [*one.elts, *found]
        elif isinstance(one, ast.Starred):
            found = [one.value, *found]
        else:
            yield one


@lru_cache(4)  # a scope is read for its names, for its globals and for its writes
def nodes_of(scope):
    """The nodes of a module or function, without those of the functions in it; classes have no scope for these."""
    found, waiting = [], [*ast.iter_child_nodes(scope)][::-1]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, FUNCTIONS):
            waiting += [*ast.iter_child_nodes(node)][::-1]
    return found


def names_bound(scope):
    """The names that a scope binds itself."""
    arguments = scope.args if isinstance(scope, FUNCTIONS) else None
    if arguments:
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        yield from (one.arg for one in given if one)
    for node in nodes_of(scope):
        yield from (one.id for one in targets_of(node) if isinstance(one, ast.Name))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.comprehension | ast.NamedExpr):
            yield from (one.id for one in ast.walk(node.target) if isinstance(one, ast.Name))


def changes_of(node):
    """The chains that a node changes, and what it does to them."""
    for one in targets_of(node):
        if not isinstance(one, ast.Name):
            yield chain_of(one), ""
    if isinstance(node, ast.Call):
        name = ".".join(chain_of(node.func))
        if name in ("setattr", "delattr", "object.__setattr__") and node.args:
            yield [*chain_of(node.args[0]), *(x.value for x in node.args[1:2] if isinstance(x, ast.Constant))], ""
        elif name == "next" and node.args:
            yield chain_of(node.args[0]), "next"
        elif isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            yield chain_of(node.func.value), "method"


def is_container(value):
    return isinstance(value, MutableMapping | MutableSequence | MutableSet)


class Reader:
    """The writes of one file to what outlives a call, as texts."""

    def __init__(self, tree, module):
        self.tree, self.module = tree, module
        imported = [node for node in nodes_of(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        self.imported = {alias.asname or alias.name.partition(".")[0] for node in imported for alias in node.names}
        self.held = {*names_bound(tree)}
        self.kinds = [
            kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__
        ]

    def found(self):
        yield from self.read(self.tree, set(), "")
        for name, value in vars(self.module).items():
            if name in self.held - self.imported:
                yield from self.state_of(name, value)

    def read(self, scope, local, first):
        """The writes of a scope and of the functions in it, whose names hide those of the module."""
        for node in nodes_of(scope):
            if isinstance(node, ast.Global):
                yield f"global {', '.join(node.names)}"
            for names, how in changes_of(node):
                if names and self.outlives(names, how, scope, local, first):
                    yield ".".join(names)
            if isinstance(node, FUNCTIONS):
                bound = {*names_bound(node)} - {
                    name for one in nodes_of(node) if isinstance(one, ast.Global) for name in one.names
                }
                arguments = node.args.args
                yield from self.read(node, local | bound, arguments[0].arg if arguments else first)

    def outlives(self, names, how, scope, local, first):
        root, *inner = names
        if root in local:
            if root == "cls" or "__class__" in inner[:-1]:
                return True
            # What instances have of their class; a next() of a generator is a call's own.
            return root == first and bool(inner) and any(self.is_shared(kind, inner[0], how) for kind in self.kinds)
        if root not in self.held or (scope is self.tree and root not in self.imported):
            return False
        return how == "" or self.holds(names, how)

    def holds(self, names, how):
        """Whether a chain is a container, or a counter."""
        value = self.module
        for name in names:
            value = getattr(value, name, None)
        return is_container(value) if how == "method" else value is not None

    def is_shared(self, kind, name, how):
        value = vars(kind).get(name)
        return is_container(value) or (how == "next" and hasattr(value, "__next__"))

    def state_of(self, name, value):
        """An object that a module holds whose own methods change it, or that is a thread's or a context's."""
        if isinstance(value, threading.local | ContextVar):
            yield f"{name} of {'a thread' if isinstance(value, threading.local) else 'a context'}"
        elif type(value).__module__.partition(".")[0] in ("qcore", "qtorch", "qjax"):
            for kind in type(value).__mro__[:-1]:
                yield from (f"{name} by {kind.__name__}.{method}" for method in changing_methods(kind))


@cache
def changing_methods(kind):
    """The methods of a class of ours that change the object, but those that make it."""
    if kind.__module__.partition(".")[0] not in ("qcore", "qtorch", "qjax"):
        return []
    try:
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body[0].body
    except OSError:  # made by a function
        return []
    methods = [node for node in body if isinstance(node, ast.FunctionDef) and node.name not in MAKING]
    return [
        method.name
        for method in methods
        if method.args.args
        and any(
            names[:1] == [method.args.args[0].arg] and names[1:] and "cached_property" not in ast.unparse(method)
            for node in ast.walk(method)
            for names, how in changes_of(node)
            if how != "next"
        )
    ]


def writes(package):
    """All writes of a package's files, with the files' names."""
    for path in sorted((ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name.endswith("__main__"):
            continue
        for found in Reader(ast.parse(path.read_text()), import_module(name)).found():
            yield f"{path.relative_to(ROOT).as_posix()}: {found}"


def test_what_outlives_a_call():
    found = {*chain.from_iterable(map(writes, ("qcore", "qtorch", "qjax")))}
    assert found == {*ALLOWED}


@pytest.mark.parametrize(
    ("found", "program"),
    [
        ("global depth", "depth = 0\ndef f():\n    global depth\n    depth += 1"),
        ("STATE.depth", "class S:\n    depth = 0\nSTATE = S()\ndef f():\n    STATE.depth += 1"),
        ("S.observer", "class S:\n    observer = None\ndef f(x):\n    S.observer = x"),
        ("cls.observer", "class S:\n    @classmethod\n    def f(cls, x):\n        cls.observer = x"),
        ("self.__class__.n", "class S:\n    def f(self):\n        type(self).n = 1"),
        ("self.seen", "class S:\n    seen = []\n    def f(self, x):\n        self.seen.append(x)"),
        ("table", "table = {}\ndef f(x):\n    table[x] = 1"),
        ("table", "table = {}\ndef f(x):\n    def g():\n        table.update(x=1)"),
        ("counter", "from itertools import count\ncounter = count()\ndef f():\n    return next(counter)"),
        ("Path.functions", "from pathlib import Path\nPath.functions = 1"),
        ("Path.functions", "from pathlib import Path\ndef f():\n    setattr(Path, 'functions', 1)"),
        ("V of a context", "from contextvars import ContextVar\nV = ContextVar('V')"),
        ("", "table = {}\ntable['made'] = 1\ndef f(table):\n    table['own'] = 1"),
        (
            "",
            "class S:\n    def __init__(self):\n        self.a = []\n    def f(self, x):\n        self.a.append(x)",
        ),
        ("", "def f():\n    table = []\n    table.append(1)\n    return next(iter(table))"),
    ],
)
def test_a_write_is_found(found, program):
    module = ModuleType("of_a_test")
    exec(program, vars(module))
    assert [*Reader(ast.parse(program), module).found()] == [found] * bool(found)
