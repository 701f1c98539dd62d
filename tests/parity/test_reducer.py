"""`Reducer` in torch and JAX beside NumPy's: the same bits."""

import copy
import pickle

import jax
import numpy as np
import pytest
import torch
from ranks import DTYPES, KINDS, hard_stack
from support import assert_same_bits

import qcore.distributed
import qjax.distributed
import qtorch.distributed

STOCHASTIC = "collective(wire=bfloat16,order=nccl_ring,rounding=stochastic)"
NODES = f"collective(wire=bfloat16,order=nccl_tree,inner={STOCHASTIC},inner_ranks=2,divide=premultiply)"
BACKENDS = qcore.distributed.BACKENDS
# ZeRO++ has a law for matrices only.
SUMS = [name for name, backend in BACKENDS.items() if backend.law.order != "none" and name != "zeropp.qgz"]
NAMES = [*SUMS, *(f"{name}.avg" for name in SUMS if BACKENDS[name].average)]
NAMES += [STOCHASTIC, NODES, "collective(accumulator=accumulator(float32,chunk=3),divide=split)"]


def tensor(x):
    return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, x.dtype.name))


def compare(package, convert, name, dtype, ranks):
    kinds = [hard_stack(kind, ranks, 11, dtype) for kind in KINDS]
    ends = np.zeros((ranks, 3), kinds[0].dtype)
    ends[0], ends[-1, 1:2] = [np.nan, np.inf, -np.inf], -np.inf
    stack = np.concatenate([*kinds, ends], 1)
    found = []
    for of, make in ((package, convert), (qcore.distributed, np.asarray)):
        reducer = of.Reducer(name, ranks, key=5)
        for row in stack:
            reducer.add([make(row[:8].reshape(2, 4)), {"weight": make(row[8:])}])
        found.append([reducer.result()[0], reducer.result()[1]["weight"]])
    for actual, expected in zip(*found, strict=True):
        assert_same_bits(actual, expected, f"{name} {dtype} {ranks}")


@pytest.mark.parametrize("ranks", [1, 6])
def test_torch(ranks):
    for place, name in enumerate(NAMES):
        if name != NODES or ranks > 1:
            compare(qtorch.distributed, tensor, name, [*DTYPES][(place + ranks) % 3], ranks)


@pytest.mark.parametrize("name", [pytest.param("nccl.ring.bf16.avg", marks=pytest.mark.heavy), NODES])
def test_jax(name):
    compare(qjax.distributed, np.asarray, name, "float32", 6)


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_all(name, dtype):
    for ranks in (1, 3, 6, 8, 17):
        if name != NODES or ranks in (6, 8):
            compare(qtorch.distributed, tensor, name, dtype, ranks)
            compare(qjax.distributed, np.asarray, name, dtype, ranks)


def goes_on(package, convert, name, labels):
    """A reducer that is pickled before each gradient, and its copies, have the bits of one that is not."""
    stack = hard_stack("wide", 6, 12, "float32")
    reducer, others = package.Reducer(name, 6, labels=labels, key=5), []
    expected = qcore.distributed.Reducer(name, 6, labels=labels, key=5)
    for row in stack:
        others = [copy.copy(reducer), copy.deepcopy(reducer)]
        reducer = pickle.loads(pickle.dumps(reducer))
        for one in (reducer, *others):
            one.add({"a": [convert(row[:4].reshape(2, 2))], "b": (convert(row[4:]),)})
        expected.add(row)
    assert len(pickle.dumps(reducer)) < 4000  # without gradients
    for found in (one.result() for one in (reducer, *others)):
        assert (type(found["a"]), type(found["b"])) == (list, tuple)
        parts = [np.asarray(found[one][0]).ravel() for one in ("a", "b")]
        assert_same_bits(np.concatenate(parts), expected.result(), name)


@pytest.mark.parametrize("name", ["nccl.ring.bf16.avg", NODES, NAMES[-1]])
def test_copies_go_on(name):
    for labels in ("rotated", "ranks"):
        goes_on(qcore.distributed, np.asarray, name, labels)
        goes_on(qtorch.distributed, tensor, name, labels)


def test_copies_go_on_in_jax():
    goes_on(qjax.distributed, np.asarray, "nccl.nvls", "ranks")  # whose sums are float64


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_copies_of_all_go_on(name):
    for labels in ("rotated", "ranks"):
        for package, convert in ((qcore, np.asarray), (qtorch, tensor), (qjax, np.asarray)):
            goes_on(package.distributed, convert, name, labels)


@pytest.mark.parametrize(("package", "convert"), [(qcore, np.asarray), (qtorch, tensor)])
def test_results_that_are_written_to(package, convert):
    """A user may scale a gradient in place, and ask for the sum again."""
    for ranks in (1, 2):
        reducer, x = package.distributed.Reducer("gloo", ranks), convert(np.ones(2, np.float32))
        for _ in range(ranks):
            reducer.add([x, x])
        first = reducer.result()
        first[0] *= 8
        assert [one.tolist() for one in first] == [[8 * ranks] * 2, [ranks] * 2]
        assert [one.tolist() for one in reducer.result()] == [[ranks] * 2] * 2
        assert x.tolist() == [1, 1]


def test_messages_of_packages():
    with pytest.raises(ValueError, match=r"gradient requires gradients; allowed is gradient\.detach"):
        qtorch.distributed.Reducer("gloo", 2).add(torch.ones(2, requires_grad=True))
    with pytest.raises(TypeError, match=r"gradient is a ndarray; allowed is a torch\.Tensor"):
        qtorch.distributed.Reducer("gloo", 2).add(np.ones(2, np.float32))
    reducer = qtorch.distributed.Reducer("gloo", 2)
    reducer.add(torch.ones(2))
    with pytest.raises(ValueError, match="gradient is on meta; allowed is cpu, as for the tensors before"):
        reducer.add(torch.ones(2, device="meta"))
    with pytest.raises(TypeError, match="gradient is traced; allowed are arrays outside of jit"):
        jax.jit(lambda x: qjax.distributed.Reducer("gloo", 2).add(x))(np.ones(2, np.float32))
    with pytest.raises(ValueError, match="key=None; rounding='stochastic' needs a key"):
        qjax.distributed.Reducer(STOCHASTIC, 2)


def test_labels_of_ranks_in_jax():
    stack = hard_stack("wide", 4, 9, "float32")
    reducer = qjax.distributed.Reducer(STOCHASTIC, 4, labels="ranks", key=jax.random.key(5))
    for row in stack:
        reducer.add(row)
    assert_same_bits(reducer.result(), qcore.distributed.reduce(stack, STOCHASTIC, key=5))


def test_gradients_that_are_written_to():
    """Tensors may be another gradient's memory after they were added; torch's own sums are in place."""
    for name in ("nccl.tree.fp32", "gloo", "collective(accumulator=accumulator(float32,chunk=3))"):
        for labels in ("ranks", "rotated"):
            reducer, x = qtorch.distributed.Reducer(name, 3, labels=labels), torch.ones(2)
            for number in 1, 2, 4:
                reducer.add(x.fill_(number))
            x.fill_(100)
            assert reducer.result().tolist() == [7, 7], (name, labels)
            assert x.tolist() == [100, 100]


@pytest.mark.parametrize("name", ["nccl.ring.bf16.avg", "nccl.tree.bf16", "megatron", "collective(divide=before)"])
def test_gradients_as_they_lie_in_memory(name):
    """Of more numbers than one thread adds; with gaps between them, and at addresses that fit no vector."""
    stack = hard_stack("wide", 5, 40_001, "float32")
    reducer, expected = (of.Reducer(name, 5) for of in (qtorch.distributed, qcore.distributed))
    bytes_of = np.zeros(4 * 40_001 + 1, np.uint8)
    for rank, row in enumerate(stack):
        expected.add(row)
        if rank % 2:
            reducer.add(torch.from_numpy(np.repeat(row, 2))[::2])
        else:
            bytes_of[1:] = row.view(np.uint8)
            reducer.add(torch.frombuffer(bytes_of, dtype=torch.float32, offset=1))
    assert_same_bits(reducer.result(), expected.result(), name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_means_by_torch(dtype):
    """All numbers of 16 bits: torch's quotients and products are the law's."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[dtype])
    for divide in ("before", "premultiply"):
        law = f"collective(divide={divide})"
        stack = np.full((7, numbers.size), -0.0, numbers.dtype)
        stack[0] = numbers
        reducer = qtorch.distributed.Reducer(law, 7)
        for row in stack:
            reducer.add(tensor(row))
        assert_same_bits(reducer.result(), qcore.distributed.reduce(stack, law), law)


def test_a_ring_of_16384_ranks_loses_a_gradient():
    """Of terms with one sign, noise 0.3 of the signal; half a step of the sum is more than a term from 256 on."""
    gradients = 1 + 0.3 * torch.randn((16384, 8), generator=torch.Generator().manual_seed(0))
    left = {}
    for name in ("gloo", "nccl.tree.bf16", "nccl.ring.bf16"):
        reducer = qtorch.distributed.Reducer(name, 16384)
        for gradient in gradients:
            reducer.add(gradient)
        left[name] = reducer.result().mean().item() / 16384
    assert 0.99 < left["gloo"] < 1.01
    assert 0.99 < left["nccl.tree.bf16"] < 1.01
    assert 0.03 < left["nccl.ring.bf16"] < 0.05
