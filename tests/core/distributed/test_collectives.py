"""Sums over ranks in NumPy: names and texts, and NCCL's orders beside models of its schedules, written apart."""

import math
import pickle
import re

import ml_dtypes
import numpy as np
import pytest
from ranks import hard_stack

import qcore
from qcore import Accumulator, parse
from qcore.distributed import BACKENDS, Collective, all_gather, named, reduce, reduce_scatter
from qcore.distributed.law import levels

BF16 = ml_dtypes.bfloat16


def add(a, b):
    """A hop in bfloat16: float32's sum, converted once."""
    return (a.astype(np.float32) + b.astype(np.float32)).astype(BF16)


def same(actual, expected):
    return np.asarray(actual).tobytes() == np.asarray(expected).tobytes()


def ring(stack, chunk, last):
    """NCCL's ring as ranks that pass messages on: `runRing` of all_reduce.h, one channel."""
    ranks, count = stack.shape
    out = np.empty((ranks, count), stack.dtype)
    offset = 0
    while offset < count:
        size = chunk if count - offset >= ranks * chunk else last
        place = [slice(offset + c * size, min(offset + (c + 1) * size, count)) for c in range(ranks)]
        sent = {rank: stack[rank, place[(rank - 1) % ranks]] for rank in range(ranks)}  # step 0
        for step in range(2, ranks + 1):  # each adds its own numbers to what the rank before it sent
            sent = {
                rank: add(sent[(rank - 1) % ranks], stack[rank, place[(rank - step) % ranks]]) for rank in range(ranks)
            }
        for rank in range(ranks):  # the chunk of the rank itself is whole now, and goes round
            for receiver in range(ranks):
                out[receiver, place[rank]] = sent[rank]
        offset += ranks * size
    assert all(same(row, out[0]) for row in out)
    return out[0]


@pytest.mark.parametrize(("ranks", "count"), [(2, 9), (3, 7), (3, 1000), (5, 41), (8, 3), (8, 200)])
def test_ring(ranks, count):
    stack = hard_stack("wide", ranks, count, "bfloat16")
    last = -(-count // (ranks * 8)) * 8  # the smallest multiple of 16 bytes with which the ranks hold all
    assert same(reduce(stack, "nccl.ring.bf16"), ring(stack, 1 << 20, last))


def test_ring_of_two_loops():
    """2 MiB are a chunk; the second loop has what is left."""
    count = 3 * (1 << 20) + 1000
    stack = hard_stack("wide", 3, count, "bfloat16")
    assert same(reduce(stack, "nccl.ring.bf16"), ring(stack, 1 << 20, 336))


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_ring_of_reduce_scatter(ranks):
    """Output d starts at the rank after d, and ends at d."""
    stack = hard_stack("wide", ranks, 11 * ranks, "bfloat16")
    found = reduce_scatter(stack, "nccl.ring.bf16")
    for output in range(ranks):
        part = stack[:, 11 * output : 11 * output + 11]
        total = part[(output + 1) % ranks]
        for hop in range(2, ranks + 1):
            total = add(total, part[(output + hop) % ranks])
        assert same(found[output], total)


def parent_of(node, count):
    """The parent in NCCL's first tree: the lowest bit is cleared and the next set, or cleared alone beyond the end."""
    bit = node & -node
    parent = (node ^ bit) | (bit << 1)
    return node ^ bit if parent >= count else parent


@pytest.mark.parametrize("ranks", range(2, 65))
def test_tree(ranks):
    """Ranks that send to their parents, which add the child below them first."""
    stack = hard_stack("wide", ranks, 20, "bfloat16")
    children = {node: [n for n in range(1, ranks) if parent_of(n, ranks) == node] for node in range(ranks)}

    def total(node):
        found = stack[node]
        for child in children[node]:  # ascending: the one below the node, then the one above it
            found = add(found, total(child))
        return found

    assert all(len(found) <= 2 for found in children.values())
    assert same(reduce(stack, "nccl.tree.bf16"), total(0))


def lanes(count):
    """The steps that are sent together, in PAT's order: the places with their bits inverted and mirrored."""
    bits = count.bit_length() - 1
    return [sum(1 << (bits - 1 - bit) for bit in range(bits) if not place >> bit & 1) for place in range(count)]


def pat_schedule(ranks, together):
    """Steps of each rank in NCCL's PAT: the offset from which numbers come, or None, and the offset that they feed."""
    power = 1 << (ranks - 1).bit_length()
    delta = power // together

    def received(offset):
        receiver = offset - (offset & -offset or power)
        return [(offset if offset < ranks else None, receiver)] if receiver < ranks else []

    steps = []
    for at in reversed(range(1, delta)):
        places = [lane * delta + at for lane in lanes(together)]
        if at % 2:
            steps += [(None, place) for place in places if place < ranks]
        if at > 1:
            steps += [step for place in places for step in received(place)]
    scale = 1
    while scale < together:
        places = [(2 * lane + 1) * scale * delta for lane in lanes(together // (2 * scale))]
        for place in places:  # its neighbour's numbers, at distance 1
            steps += [(place + 1 if place + 1 < ranks else None, place)] if place < ranks else []
        for place in places:
            steps += received(place)
        scale *= 2
    return [*steps, (1, 0)]


def pat_text(ranks, together):
    """The additions of offset 0, as the schedule makes them; partial sums are texts."""
    sums, gone = {}, set()
    for sender, receiver in pat_schedule(ranks, together):
        assert receiver not in gone  # or numbers come too late
        sums.setdefault(receiver, str(receiver))
        if sender is not None:
            sums[receiver] = f"({sums[receiver]}+{sums[sender]})"
            gone.add(sender)
    assert gone == {*range(1, ranks)}
    return sums[0]


def aggregations(ranks):
    """1, and powers of two up to half of the ranks."""
    return [1 << k for k in range(ranks.bit_length()) if k == 0 or 1 << k <= ranks // 2]


def test_pat():
    """All 264 schedules of up to 64 ranks."""
    count = 0
    for ranks in range(2, 65):
        for together in aggregations(ranks):
            texts = {offset: str(offset) for offset in range(ranks)}
            for nodes, children in levels("nccl_pat", ranks, together):
                found = {n: f"({texts[n]}+{texts[child]})" for n, child in zip(nodes, children, strict=True)}
                texts |= found
            assert texts[0] == pat_text(ranks, together), (ranks, together)
            count += 1
    assert count == 264


def test_pat_by_numbers():
    stack = hard_stack("wide", 5, 15, "bfloat16")
    for output, found in enumerate(reduce_scatter(stack, "nccl.pat")):
        x = [stack[(output - offset) % 5, 3 * output : 3 * output + 3] for offset in range(5)]
        assert same(found, add(add(add(x[0], x[4]), add(x[2], x[3])), x[1]))
    together = Collective(order="nccl_pat", aggregation=4)  # offsets 2 and 4 before 1, in ascending order
    for output, found in enumerate(reduce_scatter(stack, together)):
        x = [stack[(output - offset) % 5, 3 * output : 3 * output + 3] for offset in range(5)]
        assert same(found, add(add(add(x[0], add(x[2], x[3])), x[4]), x[1]))


def left_of(gradients, name):
    """The part of a gradient that a sum keeps."""
    exact = gradients.astype(np.float64).sum(0)
    return reduce(gradients, name).astype(np.float64) @ exact / (exact @ exact)


def test_a_ring_swamps_a_gradient():
    """Terms of one sign, as those of norms' gains: beyond 256 terms a bfloat16 sum loses them."""
    rng = np.random.default_rng(0)
    signal = (rng.standard_normal(128) * 10.0 ** rng.uniform(-5, -2, 128)).astype(np.float32)
    gradients = signal + abs(signal) * np.float32(0.3) * rng.standard_normal((1536, 128)).astype(np.float32)
    assert 0.3 < left_of(gradients, "nccl.ring.bf16") < 0.45
    assert left_of(gradients, "nccl.tree.bf16") > 0.99
    assert left_of(gradients, "nccl.symmetric") > 0.999
    stochastic = reduce(gradients, "collective(wire=bfloat16,order=nccl_ring,rounding=stochastic)", key=3)
    assert 0.98 < np.mean(stochastic / gradients.sum(0, np.float64)) < 1.02


def test_means():
    """Each way divides at its place: exact quotients, converted once."""
    stack = hard_stack("wide", 6, 24, "bfloat16")
    wide = stack.astype(np.float64)

    def ascending(terms):
        total = terms[0]
        for term in terms[1:]:
            total = add(total, term)
        return total

    def converted(x):
        return x.astype(np.float32).astype(BF16)

    expected = {
        "before": ascending(converted(wide / 6)),
        "premultiply": ascending(converted(wide * float(BF16(1 / 6)))),
        "after": converted(ascending(stack).astype(np.float64) / 6),
        "split": converted(ascending(converted(wide / 2)).astype(np.float64) / 3),
    }
    for divide, mean in expected.items():
        assert same(reduce(stack, Collective(divide=divide)), mean), divide
    assert len({mean.tobytes() for mean in expected.values()}) == 3  # a power of two moves no bits, but of overflow:
    stack = np.float16([[40000], [40000], [0], [0], [0], [0]])
    assert reduce(stack, Collective(divide="after")).tolist() == [np.inf]
    assert reduce(stack, Collective(divide="split")).tolist() == [float(np.float16(40000 / 3))]


def test_a_float32_sum_is_rounded_once():
    stack = hard_stack("wide", 5, 40, "bfloat16")
    total = np.zeros(40, np.float32)
    for row in stack:
        total = total + row.astype(np.float32)
    assert same(reduce(stack, "megatron"), total.astype(BF16))
    assert same(reduce(stack, "deepep.combine"), total.astype(BF16))
    # where ranks begin with their own numbers, the same sum is another
    stack = hard_stack("wide", 5, 40, "float32")
    own = reduce_scatter(stack, Collective(order="own_first"))
    total = stack[2, 16:24]
    for rank in (3, 4, 0, 1):
        total = total + stack[rank, 16:24]
    assert same(own[2], total)


def test_a_switch_is_the_exact_sum_rounded_once():
    for kind in ("wide", "ties", "tiny"):
        stack = hard_stack(kind, 7, 60, "float16")
        exact = [math.fsum(column) for column in stack.astype(np.float64).T]
        assert same(reduce(stack, "nccl.nvls"), np.float64(exact).astype(np.float16)), kind


LEVELS = Collective(
    "bfloat16",
    "nccl_tree",
    divide="premultiply",
    inner=Collective("e4m3fn:saturate", accumulator=Accumulator(chunk=1), divide="before"),
    inner_ranks=2,
)


def test_nodes_of_ranks():
    """Two ranks of a node average in FP8, then three nodes by a tree of bfloat16."""
    e4m3 = ml_dtypes.float8_e4m3fn

    def sent(x):
        return np.clip(x, -448, 448).astype(e4m3).astype(np.float32)

    stack = hard_stack("wide", 6, 40, "float32")
    nodes = []
    for first, second in zip(stack[::2], stack[1::2], strict=True):
        halves = [sent(sent(x) / 2) for x in (first, second)]
        nodes.append(sent(halves[0] + halves[1]))
    third = np.float32(BF16(1 / 3))
    a, b, c = [(x.astype(BF16).astype(np.float32) * third).astype(BF16) for x in nodes]
    assert same(reduce(stack, LEVELS), add(a, add(c, b)).astype(np.float32))
    assert parse(LEVELS.text, Collective) == LEVELS == pickle.loads(pickle.dumps(LEVELS))
    assert same(all_gather(stack, LEVELS), sent(stack))  # e4m3's numbers are bfloat16's
    # of a scatter each level sees the whole message: chunk c of a node's ring, and of the ring of nodes
    rings = Collective("bfloat16", "nccl_ring", inner=Collective("bfloat16", "nccl_ring"), inner_ranks=3)
    stack = hard_stack("wide", 6, 12, "bfloat16")
    found = []
    for element in range(12):
        terms = []
        for node in (stack[:3, element], stack[3:, element]):
            order = [(element // 4 + k) % 3 for k in (1, 2, 3)]
            terms.append(add(add(node[order[0]], node[order[1]]), node[order[2]]))
        found.append(add(*terms))
    assert same(reduce_scatter(stack, rings).ravel(), np.array(found))


def test_eight_bits_saturate():
    stack = np.float32([[448.0, 300.0, np.inf, np.nan], [448.0, 2.0, 1.0, 1.0]])
    assert reduce(stack, "nccl.ring.e4m3").tolist()[:3] == [448.0, 288.0, 448.0]
    assert reduce(np.float32([[57344.0], [57344.0]]), "nccl.tree.e5m2").tolist() == [57344.0]
    assert np.isnan(reduce(stack, "nccl.ring.e4m3")[3])
    assert reduce(np.ones((1024, 1), np.float32), "nccl.ring.e4m3.avg").tolist() == [0.0]  # 1 / 1024 is 0 in e4m3


@pytest.mark.parametrize(("name", "dtype", "top"), [("e4m3", "float8_e4m3fn", 448), ("e5m2", "float8_e5m2", 57344)])
def test_a_hop_of_eight_bits(name, dtype, top):
    """All pairs of finite numbers: reduce_kernel.h adds them in half, and converts the sum with saturation."""
    codes = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float16)
    pairs = np.stack(np.meshgrid(codes[np.isfinite(codes)], codes[np.isfinite(codes)])).reshape(2, -1)
    with np.errstate(over="ignore"):
        halves = pairs[0] + pairs[1]
    expected = np.clip(halves, -top, top).astype(getattr(ml_dtypes, dtype)).astype(np.float32)
    assert same(reduce(pairs.astype(np.float32), f"nccl.ring.{name}"), expected)
    assert same(reduce(pairs.astype(np.float32), f"nccl.tree.{name}"), expected)


def test_signed_zeros():
    zeros = np.float32([[-0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]])
    for name in ("gloo", "nccl.ring.fp32", "nccl.tree.fp32", "nccl.symmetric"):
        assert np.signbit(reduce(zeros, name)).tolist() == [True, False], name
    assert np.signbit(reduce(zeros, "xla.cpu")).tolist() == [False, False]


def test_data_that_is_special():
    stack = np.float32([[np.inf, np.inf, -np.nan, 3e38], [1, -np.inf, 1, 3e38]])
    assert reduce(stack, "gloo").view(np.uint32).tolist() == [0x7F800000, 0x7FC00000, 0x7FC00000, 0x7F800000]
    assert same(reduce(stack[:1], "xla.cpu"), np.float32([np.inf, np.inf, np.nan, 3e38]))  # one rank
    assert reduce(np.zeros((3, 2, 0), np.float32), "gloo").shape == (2, 0)
    assert reduce_scatter(np.zeros((3, 0, 5), np.float32), "gloo").shape == (3, 0, 5)
    assert all_gather(np.zeros((3, 0), np.float32), "gloo").shape == (3, 0)
    assert reduce(np.float32([1, 2, 3]), "gloo").tolist() == 6


def test_gathers_round_to_the_wire():
    stack = hard_stack("wide", 3, 10, "float32")
    assert same(all_gather(stack, "nccl.ring.bf16"), stack.astype(BF16).astype(np.float32))
    assert same(all_gather(stack, "gloo"), stack)


@pytest.mark.parametrize("name", BACKENDS)
def test_names(name):
    backend = BACKENDS[name]
    assert backend.source
    assert backend.undefined
    assert parse(backend.law.text, Collective) == backend.law == pickle.loads(pickle.dumps(backend.law))
    assert named(name) == backend.law
    if backend.average is not None:
        assert named(f"{name}.avg").divide == backend.average


def test_texts():
    law = Collective("e4m3fn", "nccl_tree", Accumulator("bfloat16", chunk=1), None, "after", "stochastic", flush=True)
    assert law.text == (
        "collective(wire=e4m3fn,order=nccl_tree,accumulator=accumulator(bfloat16,chunk=1),divide=after,"
        "rounding=stochastic,flush=True)"
    )
    assert qcore.parse(law.text) == law
    assert repr(Collective(order="gloo_ring")) == "Collective(order='gloo_ring')"


WRONG = [
    (lambda x: reduce(x, "nccl.rings"), "collective='nccl.rings' (nearest: nccl.ring"),
    (lambda x: reduce(x, "nccl.pat.avg"), "allowed is nccl.pat, which has no mean"),
    (lambda x: reduce(x, "nccl.pat"), "has the order nccl_pat; allowed is it in reduce_scatter"),
    (lambda x: reduce_scatter(x[:, :2], "nccl.tree.bf16"), "has the order nccl_tree; allowed is it in reduce"),
    (lambda x: reduce_scatter(x, "gloo"), "stack has shape (2, 3); allowed is a multiple of 2 in axis 1"),
    (lambda x: reduce(x.astype(np.int32), "gloo"), "stack has dtype int32; allowed are float32"),
    (lambda x: reduce(x[:0], "gloo"), "stack has shape (0, 3)"),
    (lambda x: reduce(x, 3), "collective is a int; allowed is a Collective"),
    (lambda x: reduce(x, "accumulator(float16)"), "collective is a Accumulator; allowed is a Collective"),
    (lambda x: reduce(x, "collective(rounding=stochastic)"), "key=None; rounding='stochastic' needs a key"),
    (lambda x: Collective("mxfp4"), "accumulator=None with wire=mxfp4; allowed is an accumulator"),
    (lambda x: Collective("nf4", "none", divide="split"), "divide=split with wire=nf4; allowed are None and after"),
    (
        lambda x: Collective("scaled(e4m3fn,{...:None},scale=float32,history=4)", "none"),
        "allowed are formats without history",
    ),
    (lambda x: Collective(order="tree"), "order='tree'; allowed are ascending"),
    (lambda x: Collective(order="nccl_tree", start="zero"), "start=zero with order=nccl_tree"),
    (lambda x: Collective(order="nccl_pat", accumulator=Accumulator()), "allowed is an accumulator with chunk=1"),
    (
        lambda x: Collective(order="nccl_pat", aggregation=6),
        "aggregation=6 with order=nccl_pat; allowed is a power of two",
    ),
    (lambda x: Collective(aggregation=2), "aggregation=2 with order=ascending; allowed is 1"),
    (
        lambda x: reduce_scatter(x[:, :2], "collective(order=nccl_pat,aggregation=2)"),
        "aggregation=2 of 2 ranks or nodes; allowed is at most 1 there",
    ),
    (lambda x: Collective(accumulator=Accumulator(product="float16")), "allowed are accumulators of number"),
    (
        lambda x: reduce(np.ones((3, 2), np.float32), LEVELS),
        "3 ranks with nodes of 2; allowed is a multiple of 2 ranks",
    ),
    (
        lambda x: reduce(np.ones((6, 2), np.float32), Collective(inner=LEVELS, inner_ranks=3)),
        "3 ranks with nodes of 2; allowed is a multiple of 2 ranks",
    ),
    (lambda x: Collective(inner_ranks=2), "inner_ranks=2; allowed is 1 without inner"),
    (lambda x: Collective(inner="collective()"), "inner_ranks=1; allowed is at least 2 with inner"),
    (lambda x: Collective(inner="fixed(8,4)", inner_ranks=2), "allowed are a Collective, its text, and None"),
    (lambda x: Collective(accumulator="hopper.wgmma.e4m3"), "allowed are accumulators of number"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_arguments(call, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call(np.ones((2, 3), np.float32))
