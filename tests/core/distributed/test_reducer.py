"""Sums over ranks that come one by one: the bits of the sum of all at once, with less memory."""

import gc
import re
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import DTYPES, KINDS, hard_stack
from support import assert_same_bits

from qcore.distributed import BACKENDS, Collective, Reducer, reduce, reduce_scatter

STOCHASTIC = "collective(wire=bfloat16,rounding=stochastic)"
# Few random bits, of which four roundings share a word, in a tree; chunks of terms; nodes of ranks, of which one level
# is a tree; all terms at once; trees of terms; blocks, and scales.
LAWS = [
    STOCHASTIC,
    "collective(order=nccl_tree,accumulator=accumulator(bfloat16,chunk=1,rounding=stochastic,random_bits=9))",
    "collective(accumulator=accumulator(bfloat16,chunk=1,rounding=stochastic,random_bits=9))",
    "collective(accumulator=accumulator(float32,chunk=3,inner=accumulator(float(6,9),chunk=1)))",
    "collective(accumulator=accumulator(float32),divide=split)",
    "collective(accumulator=accumulator(float16,chunk=4,tree=True),start=zero)",
    "collective(wire=mxfp4,accumulator=accumulator(chunk=1),divide=after,rounding=stochastic)",
    "collective(wire=e5m2,accumulator=accumulator(chunk=1),scale=wire_scale(3),rounding=stochastic)",
    f"collective(order=nccl_tree,inner={STOCHASTIC},inner_ranks=3)",
    f"{STOCHASTIC[:-1]},order=nccl_tree,divide=premultiply,inner={STOCHASTIC},inner_ranks=3)",
]
SUMS = [name for name, backend in BACKENDS.items() if backend.law.order != "none"]
NAMES = [*SUMS, *(f"{name}.avg" for name in SUMS if BACKENDS[name].average), *LAWS]


def stack_of(dtype, ranks):
    """Matrices of hard numbers, as ZeRO++ has a law for matrices only."""
    return np.concatenate([hard_stack(kind, ranks, 2 * ranks, dtype) for kind in KINDS], 1).reshape(
        ranks, 2 * ranks, -1
    )


def added(reducer, gradients):
    for gradient in gradients:
        reducer.add(gradient)
    return reducer.result()


@pytest.mark.parametrize("ranks", [1, 3, 6, 12])
def test_labels_of_ranks(ranks):
    for place, name in enumerate(NAMES):
        if "inner" in name and ranks % 3:
            continue
        stack = stack_of([*DTYPES][(place + ranks) % 3], ranks)
        call = reduce_scatter if name == "nccl.pat" else reduce
        reducer = Reducer(name, ranks, labels="ranks", key=5)
        assert_same_bits(added(reducer, stack), call(stack, name, key=5).reshape(stack.shape[1:]), name)


def add(a, b):
    return (a.astype(np.float32) + b.astype(np.float32)).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", ["gloo", "nccl.ring.bf16", "collective(order=own_first)"])
def test_rotated_labels_of_rings(name):
    """In each chunk ranks are added as they come."""
    stack = hard_stack("wide", 7, 30, "bfloat16")
    reducer = Reducer(name, 7)
    total = stack[0]
    for row in stack[1:]:
        total = add(total, row)
    assert added(reducer, stack).tobytes() == total.tobytes()
    assert reducer.labels == "rotated"
    # so chunk 0 has the bits of the ring whose rank names are turned
    first = {"gloo": 6, "nccl.ring.bf16": 1}.get(name, 0)
    turned = np.empty_like(stack)
    for k in range(7):
        turned[(first - k if name == "gloo" else first + k) % 7] = stack[k]
    assert reduce(turned, name)[:2].tobytes() == total[:2].tobytes()


def test_rotated_labels_of_pat():
    x = hard_stack("wide", 5, 3, "bfloat16")
    expected = add(add(add(x[0], x[4]), add(x[2], x[3])), x[1])
    assert added(Reducer("nccl.pat", 5), x).tobytes() == expected.tobytes()
    expected = add(add(add(x[0], add(x[2], x[3])), x[4]), x[1])
    assert added(Reducer("collective(order=nccl_pat,aggregation=4)", 5), x).tobytes() == expected.tobytes()


def test_labels_of_other_orders():
    assert Reducer("nccl.tree.bf16", 4).labels == Reducer("megatron", 4).labels == "ranks"
    nodes = Collective(order="nccl_tree", inner="collective(order=gloo_ring)", inner_ranks=2)
    assert Reducer(nodes, 4).labels == "rotated"
    assert repr(Reducer("gloo", 4)) == "<Reducer of 4 ranks by gloo, labels: rotated; 0 came>"


@pytest.mark.parametrize(("name", "arrays"), [("megatron", 1), ("nccl.tree.bf16", 9), ("nccl.ring.bf16", 1)])
def test_memory(name, arrays):
    """Of 256 ranks: one float64 array, of a tree log2(N) + 1, and those of one rounding."""
    x = np.ones(10_000, np.float32)
    reducer = Reducer(name, 256)
    reducer.add(x)
    tracemalloc.start()
    for _ in range(255):
        reducer.add(x)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reducer.result()[0] == 256
    assert most < (arrays + 17) * x.size * 8


def test_structures():
    """A message is all arrays of a gradient, in the order of their lists, tuples and dictionaries."""
    stack = hard_stack("wide", 3, 12, "float32")
    trees = [{"b": row[:6].reshape(2, 3), "a": [(row[6:7], row[7:8].reshape(()))], "c": row[8:]} for row in stack]
    found = added(Reducer(STOCHASTIC, 3, key=1), trees)
    assert list(found) == ["b", "a", "c"]
    assert found["a"][0][1].shape == ()
    parts = [found["b"].ravel(), found["a"][0][0], found["a"][0][1].ravel(), found["c"]]
    assert_same_bits(np.concatenate(parts), reduce(stack, STOCHASTIC, key=1))
    assert added(Reducer("gloo", 2), [np.zeros((0, 2), np.float16)] * 2).shape == (0, 2)


def test_gradients_that_are_written_to():
    """A gradient may be another one's memory after it was added."""
    for name in ("collective(accumulator=accumulator(float32,chunk=3))", "nccl.tree.fp32", "gloo"):
        for labels in ("ranks", "rotated"):
            reducer, x = Reducer(name, 3, labels=labels), np.ones(2, np.float32)
            for number in 1, 2, 4:
                x[:] = number
                reducer.add(x)
            x[:] = 100
            assert reducer.result().tolist() == [7, 7], (name, labels)


def ready(*gradients, **settings: Any):
    reducer = Reducer("gloo", settings.pop("ranks", 2), **settings)
    for gradient in gradients:
        reducer.add(gradient)
    return reducer


X = np.zeros((2, 3), np.float32)
WRONG = [
    (lambda: ready(X).result(), "result() after 1 gradients; allowed is it after ranks=2"),
    (lambda: ready(X, X, X), "gradient is one more than ranks=2; allowed is result(), which has their sum"),
    (
        lambda: ready(X, X[:1]),
        "gradient has shapes (1, 3) of float32; allowed are those before, (2, 3) of float32",
    ),
    (lambda: ready([X, X.astype(np.float16)]), "gradient has dtypes float16, float32; allowed is one"),
    (lambda: ready(X, X.astype(np.float16)), "gradient has shapes (2, 3) of float16; allowed are those before"),
    (lambda: ready(X.astype(int)), "gradient has dtype int64; allowed are float32, float16, bfloat16"),
    (lambda: ready([X, None]), "gradient is a NoneType; allowed is a NumPy array"),
    (lambda: ready({}), "gradient has no arrays; allowed is at least one"),
    (lambda: ready(ranks=0), "ranks=0; allowed is"),
    (lambda: ready(labels="true"), "labels='true'; allowed are rotated, ranks"),
    (lambda: Reducer("gloos", 2), "collective='gloos' (nearest: gloo"),
    (lambda: Reducer(STOCHASTIC, 2), "key=None; rounding='stochastic' needs a key"),
    (lambda: Reducer(LAWS[-2], 4, key=1), "4 ranks with nodes of 3; allowed is a multiple of 3 ranks"),
    (lambda: Reducer("torchft", 2, key=1).add(X.astype(complex)), "gradient has dtype complex128"),
    (lambda: Reducer("deepep.dispatch", 2), "has the order none; allowed is it in all_gather"),
    (
        lambda: Reducer("collective(wire=e4m3fn,accumulator=accumulator(chunk=1),scale=wire_scale(ranks))", 2),
        "has scales of all ranks; allowed is",
    ),
    (lambda: Reducer("nccl.pat", 2, labels="ranks").add(X[:1]), "gradient has 3 numbers; allowed is a multiple of"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_arguments(call, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    first, second = Reducer("gloo", 101), Reducer("megatron", 200)
    for _ in range(101):
        first.add(X)
        second.add(X)
    shown = capsys.readouterr().err
    assert re.search(r"101 ranks, labels: rotated .*100%", shown)
    assert "200 ranks" not in shown  # one bar at a time
    ready(X, X)
    assert capsys.readouterr().err == ""
    for _ in range(99):
        second.add(X)
    third = Reducer("megatron", 300)
    third.add(X)
    del third
    gc.collect()  # and its bar
    assert "300 ranks, labels: ranks" in capsys.readouterr().err
    fourth = Reducer("megatron", 400)
    fourth.add(X)
    del fourth
    gc.collect()
    assert "400 ranks" in capsys.readouterr().err


@pytest.mark.parametrize("second", [{"b": 1, "a": 2}, {"a": 1, "c": 2}])
def test_gradients_with_other_names_are_not_added(second):
    """Arrays of equal shapes were added by their places."""
    reducer = Reducer("gloo", ranks=2)
    reducer.add({"a": np.ones(1, np.float32), "b": np.ones(1, np.float32)})
    with pytest.raises(ValueError, match="gradient has other names, or another order of them"):
        reducer.add({name: np.ones(1, np.float32) for name in second})
