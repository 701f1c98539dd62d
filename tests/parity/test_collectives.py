"""Sums over ranks in the three packages: the same bits, eager and compiled."""

import jax
import numpy as np
import pytest
import torch
from ranks import DTYPES, hard_stack
from support import assert_same_bits

import qcore.distributed
import qjax.distributed
import qtorch.distributed

CALLS = "reduce", "reduce_scatter", "all_gather"
STOCHASTIC = "collective(wire=bfloat16,order=nccl_ring,rounding=stochastic)"
# Each order, accumulator, division and wire, with dtypes that differ from the wire.
CASES = [
    ("gloo", "bfloat16"),
    pytest.param("gloo.avg", "float32", marks=pytest.mark.heavy),
    ("xla.cpu", "bfloat16"),
    ("nccl.ring.bf16.avg", "float32"),
    ("nccl.tree.e4m3.avg", "bfloat16"),
    ("nccl.pat", "float16"),
    pytest.param("nccl.symmetric.avg", "bfloat16", marks=pytest.mark.heavy),
    pytest.param("megatron.avg", "float32", marks=pytest.mark.heavy),
    (STOCHASTIC, "float32"),
    (STOCHASTIC.replace("nccl_ring", "nccl_tree"), "float32"),
    ("collective(divide=split,order=own_first)", "float16"),
    ("collective(accumulator=accumulator(float32,chunk=3,inner=accumulator(float(6,9),chunk=1)))", "float32"),
    ("collective(accumulator=accumulator(float16,chunk=4,tree=True),start=zero)", "float32"),
]
LEVELS = f"{STOCHASTIC[:-1]},inner={STOCHASTIC.replace('nccl_ring', 'own_first')},inner_ranks=2)"
# The names with scales are in test_scales.py.
MORE = [(name, dtype) for name, one in qcore.distributed.BACKENDS.items() if not one.law.scale for dtype in DTYPES]


def stack_of(dtype, ranks):
    """Numbers of all kinds, with infinities, NaN and zeros."""
    kinds = [hard_stack(kind, ranks, 2 * ranks, dtype) for kind in ("wide", "ties", "tiny", "large", "zeros")]
    ends = np.zeros((ranks, 3 * ranks), kinds[0].dtype)
    ends[0, :3], ends[-1, 1:2] = [np.nan, np.inf, -np.inf], -np.inf
    return np.concatenate([*kinds, ends], 1)


def tensor(x):
    return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, x.dtype.name))


def compare(name, dtype, ranks, in_jax=CALLS):
    stack = stack_of(dtype, ranks)
    made = 0
    for call in CALLS:
        try:
            expected = getattr(qcore.distributed, call)(stack, name, key=5)
        except ValueError as error:
            assert "allowed is it in" in str(error)  # noqa: PT017  # trees have one call each
            continue
        made += 1
        assert_same_bits(getattr(qtorch.distributed, call)(tensor(stack), name, key=5), expected, f"{call} torch")
        if call in in_jax:
            assert_same_bits(getattr(qjax.distributed, call)(stack, name, key=5), expected, f"{call} jax")
    assert made >= 2


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["some", "all"])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_the_same_bits(name, dtype, everywhere):
    """JAX takes one call of each, and all of the first and of one that rounds; the heavy test takes all."""
    compare(name, dtype, 3, CALLS if everywhere or name in ("gloo", "nccl.tree.e4m3.avg") else CALLS[:1])


@pytest.mark.parametrize("calls", [CALLS[:1], pytest.param(CALLS, marks=pytest.mark.heavy)], ids=["sum", "all"])
def test_the_same_bits_of_nodes(calls):
    compare(LEVELS, "float32", 4, calls)


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
@pytest.mark.parametrize(("name", "dtype"), CASES + MORE)
def test_the_same_bits_of_all(name, dtype, ranks):
    compare(name, dtype, ranks)


def test_compiled_programs():
    stack = stack_of("float32", 3)
    expected = qcore.distributed.reduce(stack, STOCHASTIC, key=5)
    program = torch.compile(lambda x: qtorch.distributed.reduce(x * 1.0, STOCHASTIC, key=5) * 1.0, fullgraph=True)
    assert_same_bits(program(tensor(stack)), expected, "torch.compile")
    program = jax.jit(lambda x, key: qjax.distributed.reduce(x, STOCHASTIC, key=key))
    assert_same_bits(program(stack, jax.random.key(5)), expected, "jit")


def test_transformed_programs():
    stack = stack_of("float32", 3)
    expected = qcore.distributed.reduce(stack, "gloo")
    collective = qcore.distributed.Collective(order="gloo_ring")
    program = torch.compile(lambda x: qtorch.distributed.reduce(x, collective), fullgraph=True, backend="aot_eager")
    assert_same_bits(program(tensor(stack)), expected, "a Collective")
    for dtype, ranks in (("float32", 3), ("float32", 4), ("bfloat16", 5)):  # symbols, from the second shape on
        stack = stack_of(dtype, ranks)
        assert_same_bits(program(tensor(stack)), qcore.distributed.reduce(stack, "gloo"), "dynamic shapes")


def test_batches():
    stacks = np.stack([stack_of("float32", 3), stack_of("float32", 3)[::-1]])
    expected = np.stack([qcore.distributed.reduce(x, STOCHASTIC, key=7) for x in stacks])
    batch = jax.vmap(lambda x: qjax.distributed.reduce(x, STOCHASTIC, key=7))(stacks)
    assert_same_bits(batch, expected, "jax")
    batch = torch.vmap(lambda x: qtorch.distributed.reduce(x, STOCHASTIC, key=7), in_dims=2)(
        tensor(stacks).permute(1, 2, 0)
    )
    assert_same_bits(batch, expected, "torch")


def test_derivatives_raise():
    with pytest.raises(ValueError, match=r"stack requires gradients.*allowed is stack\.detach"):
        qtorch.distributed.reduce(torch.ones(2, 3, requires_grad=True), "gloo")
    with pytest.raises(TypeError, match="stack is differentiated, and reduce has no derivative"):
        jax.grad(lambda x: qjax.distributed.reduce(x, "gloo").sum())(np.ones((2, 3), np.float32))


@pytest.mark.parametrize("package", [qtorch.distributed, qjax.distributed])
def test_keys(package):
    stack = torch.ones(2, 3) if package is qtorch.distributed else np.ones((2, 3), np.float32)
    if package is qtorch.distributed:  # torch's generator draws one
        torch.manual_seed(0)
        assert package.reduce(stack * 0.3, STOCHASTIC).shape == (3,)
    else:
        with pytest.raises(ValueError, match="key=None; rounding='stochastic' needs a key"):
            package.reduce(stack, STOCHASTIC)
    for wrong in (stack[0, 0], np.ones((2, 3), np.int32)):
        with pytest.raises((TypeError, ValueError), match=r"^stack "):
            package.reduce(wrong, "gloo")
    assert package.reduce(stack[:, :0], "gloo").shape == (0,)
