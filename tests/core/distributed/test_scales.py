"""Scaled numbers on the wire beside programs' arithmetic, written again from their sources in plain NumPy."""

import math
import re

import ml_dtypes
import numpy as np
import pytest
from ranks import DTYPES, hard_stack, one_nan

import qcore
from qcore import parse
from qcore.distributed import Collective, WireScale, all_gather, named, reduce, reduce_scatter
from qcore.distributed.scale import groups_of

F32, F16, E4M3 = np.float32, np.float16, ml_dtypes.float8_e4m3fn
ACCUMULATOR = "accumulator(float32,chunk=1)"


def same(actual, expected):
    return one_nan(actual).tobytes() == one_nan(expected).tobytes()


def message(ranks, shape, dtype, special=False):
    """Numbers of many sizes, with groups of zeros and of tiny ones; `special` adds infinities and NaN."""
    kinds = [
        hard_stack(kind, ranks, math.prod(shape), dtype).reshape(ranks, *shape) for kind in ("wide", "tiny", "ties")
    ]
    found = kinds[0]
    found[:, 0], found[0, 1], found[-1, 1] = kinds[1][:, 0], 0, kinds[2][-1, 1]
    if special:
        found[0, 2, 0], found[-1, 3, 1], found[0, 4, :2] = np.inf, np.nan, [-np.inf, np.nan]
    return found


def e4m3(x):
    """cvt.satfinite: the nearest number, and the largest beyond it."""
    return np.clip(x, F32(-448), F32(448)).astype(E4M3).astype(F32)


def largest(x, axis):
    """fmax leaves NaN out."""
    return np.where(np.isnan(x), F32(0), abs(x)).max(axis, keepdims=True)


def row_scales(maxima):
    scales = F32(448) / maxima
    return np.where(np.isinf(scales), F32(1), scales)


def torchft(stack, mean):
    """fused_quantize_into_fp8, fused_reduce_fp8 by the owner of each row, fused_dequantize_from_fp8."""
    x = stack.astype(F32)
    ranks, rows = x.shape[:2]
    slice_size = -(-rows // ranks)
    scales = row_scales(largest(x, 2))
    codes = e4m3(x * scales)
    out = np.empty(x.shape[1:], F32)
    for row in range(rows):
        total = np.zeros(x.shape[2], F32)
        for hop in range(ranks):
            rank = (row // slice_size + hop) % ranks
            scale = scales[rank, row]
            total = total + codes[rank, row] / np.where(scale == 0, F32(1), scale)
        factor = F32(ranks if mean else 1)
        scale = row_scales(largest(total, 0) / factor)
        out[row] = e4m3(total * scale / factor) / scale
    return out.astype(stack.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ranks", "rows"), [(1, 5), (2, 8), (3, 7), (5, 10)])
def test_torchft(ranks, rows, dtype):
    with np.errstate(all="ignore"):
        for special in (False, True):
            stack = message(ranks, (rows, 9), dtype, special)
            assert same(reduce(stack, "torchft"), torchft(stack, False)), special
            assert same(reduce(stack, "torchft.avg"), torchft(stack, True)), special
            if rows % ranks == 0:
                parts = torchft(stack, True).reshape(ranks, rows // ranks, 9)
                assert same(reduce_scatter(stack, "torchft.avg"), parts)
        flat = message(ranks, (rows, 9), dtype).reshape(ranks, -1)  # as buckets are: each number has a scale
        assert same(reduce(flat, "torchft.avg"), torchft(flat[..., None], True)[:, 0])


def test_a_mean_is_rounded_before_it_is_divided():
    """Found among 5,000,000 sums: the exact product, divided by 3, is another number of E4M3."""
    stack = F32(
        [
            [-0.27008355, -3.3866127, 0.22027226, -1.0618864],
            [5.4856777, -0.5814007, 4.0663733, -0.17864682],
            [7.158847, 0.026407752, -9.1165905, 0.10880958],
        ]
    )[:, None]
    scales = row_scales(largest(stack, 2))
    total = (e4m3(stack * scales) / scales).astype(np.float64)
    total = ((total[0] + total[1]).astype(F32) + total[2].astype(F32)).astype(F32)
    scale = row_scales(largest(total, 1) / F32(3))
    once = e4m3((total.astype(np.float64) * scale / 3).astype(F32)) / scale
    assert not same(once, torchft(stack, True))
    assert same(reduce(stack, "torchft.avg"), torchft(stack, True))


def test_rows_are_whole():
    """Where a row has a scale, one rank adds it: float16 sums show whose number comes first."""
    law = Collective("float16", "own_first", "accumulator(float16,chunk=1)", WireScale("row", largest=1.0))
    stack = hard_stack("wide", 3, 7 * 9, "float16").reshape(3, 7, 9)

    def sent(x):
        scales = F32(1) / largest(x, -1)
        return ((x * scales).astype(F16) / scales).astype(F32)

    terms = sent(stack.astype(F32))
    rows = []
    for row in range(7):
        ranks = [(row // 3 + hop) % 3 for hop in range(3)]  # ceil(7 / 3) rows each
        total = terms[ranks[0], row]
        for rank in ranks[1:]:
            total = (total.astype(np.float64) + terms[rank, row]).astype(F16)
        rows.append(sent(total.astype(F32)))
    assert same(reduce(stack, law), np.stack(rows).astype(F16))


def quantized(x, bits):
    """Params<Symmetric>: codes of groups (..., numbers), and the scales that are sent."""
    maxima = largest(x.astype(F32), -1)
    scales = np.where(maxima == 0, F32(1), F32(1 << bits) / (2 * maxima))
    y = np.rint(x.astype(F32) * scales)
    codes = np.where(np.isnan(y), F32(0), np.clip(y, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)) + F32(0)
    return codes, F32(1) / scales


def dequantized(codes, inverse):
    return (codes * inverse).astype(F16)


def of_a_node(x):
    """swizzled_quant_kernel and dequant_reduce: what the ranks of a node have, of groups (ranks, groups, numbers)."""
    total = np.zeros(x.shape[1:], F16)
    for codes, inverse in zip(*quantized(x, 4), strict=True):
        total = total + dequantized(codes, inverse)
    return dequantized(*quantized(total, 4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ranks", "shape"), [(1, (6, 4)), (2, (6, 8)), (3, (6, 12)), (4, (5, 8)), (8, (16, 5, 2))])
def test_zeropp_sums(ranks, shape, dtype):
    with np.errstate(all="ignore"):
        for special in (False, True):
            stack = message(ranks, shape, dtype, special)
            groups = stack.astype(F16).reshape(ranks, max(*shape[:2], ranks), -1)
            expected = of_a_node(groups).reshape(shape).astype(stack.dtype)
            assert same(reduce(stack, "zeropp.qgz"), expected), special
            if shape[0] % ranks == 0:
                assert same(reduce_scatter(stack, "zeropp.qgz").reshape(shape), expected), special


def test_zeropp_sums_of_nodes():
    """all_to_all_quant_reduce: the nodes' int4 numbers are read as float16, added, and divided by the nodes."""
    stack = message(12, (24, 8), "float16")
    with np.errstate(all="ignore"):
        nodes = np.stack([of_a_node(stack[4 * node : 4 * node + 4]) for node in range(3)])
    total = np.zeros(nodes.shape[1:], F16)
    for node in nodes:
        total = total + node
    law = Collective("float16", start="zero", divide="after", inner=named("zeropp.qgz"), inner_ranks=4)
    assert same(reduce(stack, law), (total.astype(F32) / 3).astype(F16))


def groups_of_weights(count):
    """CUDAQuantizer.quantize"""
    groups = math.ceil(count / 8000)
    while groups < count:
        if count % (8 * groups) == 0:
            break
        groups += 1
    while True:
        if count % (8 * groups * 2) == 0 and count / groups > 8000:
            groups *= 2
        else:
            return groups


def test_zeropp_gathers():
    for count in [8, 24, 4000, 8000, 8008, 12_288, 24_000, 40_000, 65_536, 88_888, 1_000_000, 8 * 1009]:
        assert groups_of(named("zeropp.qwz").scale, (count,), 3).size == count // groups_of_weights(count), count
    for dtype in DTYPES:
        stack = hard_stack("wide", 2, 16_400, dtype)
        groups = stack.astype(F16).reshape(2, groups_of_weights(16_400), -1)
        expected = dequantized(*quantized(groups, 8)).reshape(stack.shape).astype(stack.dtype)
        assert same(all_gather(stack, "zeropp.qwz"), expected), dtype


def test_what_zeropp_does_not_quantize():
    """`reduce_scatter_coalesced`: vectors, and matrices of other sizes, are divided and sent as they are."""
    stack = hard_stack("wide", 3, 12, "float16")
    terms = (stack.astype(F32) / 3).astype(F16)
    found = reduce_scatter(stack, "collective(order=nccl_ring,divide=before)")
    for rank in range(3):
        first, second, last = terms[[(rank + 1) % 3, (rank + 2) % 3, rank], 4 * rank : 4 * rank + 4]
        assert same(found[rank], first + second + last)


def test_the_largest_number_of_zeropp_saturates():
    """8 / max is one step beyond int4, which ends at 7."""
    stack = np.zeros((1, 4, 4), F32)
    stack[0, 0] = [1.0, -1.0, 0.5, 0.25]
    assert reduce(stack, "zeropp.qgz")[0].tolist() == [0.875, -1.0, 0.5, 0.25]


def dispatched(stack):
    """internode_ll.cu: amax from 1e-4 on, scale = 448 / amax, and amax * (1 / 448) is sent."""
    x = stack.astype(F32)
    out = np.empty_like(x)
    for begin in range(0, x.shape[-1], 128):
        part = x[..., begin : begin + 128]
        amax = np.maximum(largest(part, -1), F32(1e-4))
        out[..., begin : begin + 128] = e4m3(part * (F32(448) / amax)) * (amax * F32(1 / 448.0))
    return out.astype(stack.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_deepep(dtype):
    with np.errstate(all="ignore"):
        for special in (False, True):
            stack = message(3, (6, 300), dtype, special)
            assert same(all_gather(stack, "deepep.dispatch"), dispatched(stack))


def test_scales_that_are_powers_of_two():
    """calculate_fp8_scales with round_scale: fast_log2_ceil and fast_pow2."""
    law = Collective("e4m3fn:saturate", "none", None, WireScale(128, least=float(F32(1e-4)), inverse="power_of_two"))
    x = message(2, (6, 256), "float32").reshape(2, 6, 2, 128)
    amax = np.maximum(largest(x, -1), F32(1e-4))
    fraction, exponent = np.frexp(amax * F32(1 / 448.0))
    inverse = np.ldexp(F32(1), exponent - (fraction == 0.5))
    assert same(all_gather(x, law), e4m3(x * (1 / inverse)) * inverse)
    zeros = F32([[0.0, -0.0, 1.0, 0.0]])  # two groups, of which one has no magnitude
    assert same(all_gather(zeros, Collective("e4m3fn", "none", None, WireScale(2, inverse="power_of_two"))), zeros)


def test_a_wire_of_one_own():
    """E3M0 as DiLoCo's: a sign and a power of two, with a scale for each array."""
    law = Collective("float(3,0)", "ascending", ACCUMULATOR, WireScale("tensor"), "after")
    stack = F32([[1.0, 0.3, -0.01, 0.0], [2.0, 1.0, 0.02, 0.0]])
    # the numbers are 0, 1/4, 1/2, 1, .. 16; scales 16 and 8, ties to the even multiple of the step
    sent = F32([[16, 4, -0.25, 0], [16, 8, 0.25, 0]]) / F32([[16], [8]])
    total = sent.sum(0)
    assert all_gather(stack, law).tolist() == sent.tolist()
    scale = F32(16) / (total.max() / F32(2))
    rounded = qcore.quantize(total * scale / F32(2), "float(3,0)")
    assert same(reduce(stack, law), rounded / scale)
    # formats without a largest number need one
    posit = Collective("posit(8,1)", "none", None, WireScale("tensor", largest=1.0))
    assert same(all_gather(stack, posit)[1], qcore.quantize(stack[1] / 2, "posit(8,1)") * 2)


def test_stochastic_wires():
    """The words of a key are those of `fold_in(key, 1)` for terms, and `fold_in(key, 3)` for the result."""
    law = Collective("e4m3fn:saturate", "ascending", ACCUMULATOR, WireScale("tensor"), rounding="stochastic")
    stack = message(3, (5, 4), "float32")

    def sent(x, scale, role, start=0):
        return qcore.quantize(x * scale, law.wire, "stochastic", key=qcore.fold_in(9, role), start=start) / scale

    terms = sent(stack, row_scales(largest(stack, (1, 2))), 1)
    assert same(all_gather(stack, law, key=9), terms)
    total = terms[0] + terms[1] + terms[2]
    expected = sent(total, row_scales(largest(total, (0, 1))), 3, start=total.size)
    assert same(reduce(stack, law, key=9), expected)
    many = reduce(np.full((512, 300), F32(1.3)), law.text.replace("tensor", "ranks"), key=1)
    assert abs(many.mean() / (512 * 1.3) - 1) < 0.01


def test_gathers_of_all_ranks_share_a_scale():
    stack = F32([[1.0, 3.0], [7.0, 448.0]])
    assert all_gather(stack, "torchao.float8_all_gather").tolist() == stack.tolist()
    stack[1, 1] = np.nan  # torch.max passes it on
    assert np.isnan(all_gather(stack, "torchao.float8_all_gather")).all()


@pytest.mark.parametrize("wire", ["mxfp8_e4m3", "nvfp4", "block(8,dim=-1)", "nf4", "gguf(q8_0)"])
def test_formats_with_scales_of_their_own(wire):
    """Each rank's message is rounded for itself, and so is the result."""
    stack = message(3, (4, 32), "float32")
    law = Collective(wire, "ascending", ACCUMULATOR, divide="after")
    terms = np.stack([qcore.quantize(one, wire) for one in stack])
    assert same(all_gather(stack, law), terms)
    mean = ((terms[0] + terms[1] + terms[2]).astype(np.float64) / 3).astype(F32)
    assert same(reduce(stack, law), qcore.quantize(mean, wire))
    if wire != "gguf(q8_0)":
        stochastic = Collective(wire, "none", rounding="stochastic")
        keys = [qcore.fold_in(qcore.fold_in(6, 1), rank) for rank in range(3)]
        found = [qcore.quantize(one, wire, "stochastic", key=key) for one, key in zip(stack, keys, strict=True)]
        assert same(all_gather(stack, stochastic, key=6), np.stack(found))
        assert parse(stochastic.text) == stochastic


def test_empty_messages():
    assert reduce(np.zeros((2, 0, 4), F32), "torchft").shape == (0, 4)
    assert reduce_scatter(np.zeros((2, 0, 4), F32), "zeropp.qgz").shape == (2, 0, 4)
    assert all_gather(np.zeros((2, 0), F32), "deepep.dispatch").shape == (2, 0)


def test_texts():
    scale = WireScale(128, 240.0, 1e-4, "power_of_two", "bfloat16", True)
    text = "wire_scale(128,largest=240,least=0.0001,inverse=power_of_two,number=bfloat16,spreads=True)"
    assert scale.text == text
    assert parse(text) == scale
    law = Collective("e5m2", "none", scale=text)
    assert law.text == f"collective(wire=e5m2,order=none,scale={text})"
    assert parse(law.text) == law


WRONG = [
    (lambda x: reduce(x, "zeropp.qwz"), "collective='zeropp.qwz' has the order none; allowed is it in all_gather"),
    (
        lambda x: reduce(x, "zeropp.qgz"),
        "allowed with group=qgz are matrices whose numbers 2 * 2 divides. ZeRO++ sends others as they are, as "
        "'collective(order=nccl_ring,divide=before)' does",
    ),
    (lambda x: reduce(np.ones((3, 5, 2), F32), "zeropp.qgz"), "of shape (5, 2); allowed with group=qgz are matrices"),
    (
        lambda x: reduce(np.ones((2, 7, 4), F32), "zeropp.qgz"),
        "which ZeRO++ cuts in 7 groups; allowed are groups that 2",
    ),
    (
        lambda x: all_gather(x, "zeropp.qwz"),
        "stack has messages of shape (3,); allowed with group=qwz are multiples of 8",
    ),
    (lambda x: reduce(x, "zeropp.qgz.avg"), "allowed is zeropp.qgz, which has no mean"),
    (lambda x: WireScale(0), "group=0; allowed is an int from 1"),
    (lambda x: WireScale("rows"), "group='rows'; allowed are row, tensor, ranks, qgz, qwz"),
    (
        lambda x: parse("wire_scale(rows)"),
        "text='wire_scale(rows)': allowed here are an int, row, tensor, ranks, qgz, qwz",
    ),
    (lambda x: WireScale(largest=0), "largest=0; allowed is a number above 0"),
    (lambda x: WireScale(least=math.inf), "least=inf; allowed is a finite number >= 0"),
    (lambda x: WireScale(inverse="exact"), "inverse='exact'; allowed are divide, reciprocal"),
    (lambda x: WireScale(number="mxfp4"), "allowed are formats without shared scales"),
    (lambda x: WireScale(spreads=1), "spreads=1"),
    (lambda x: Collective("e4m3fn", scale=WireScale()), "accumulator=None with scale=wire_scale(); allowed is an acc"),
    (lambda x: Collective(order="none", scale=WireScale()), "scale=wire_scale() with wire=None; allowed are fixed"),
    (lambda x: Collective("posit(8,1)", "none", scale=WireScale()), "allowed is a scale with largest= there"),
    (
        lambda x: Collective("e4m3fn", "none", scale="e4m3fn"),
        "scale='e4m3fn' is a BinaryFloat; allowed are a WireScale",
    ),
    (
        lambda x: Collective("e4m3fn", "own_first", ACCUMULATOR, WireScale(), "before"),
        "divide=before with scale=wire_scale(); allowed are None and after",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_arguments(call, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call(np.ones((2, 3), F32))
