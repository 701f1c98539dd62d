"""Stochastic rounding in compiled programs is one operator, with the bits of eager calls."""

import pytest
import torch
from covering import usually
from support import assert_same_bits
from torch._subclasses import FakeTensorMode
from torch.func import vmap
from torch.utils._pytree import tree_flatten

import qtorch
from qcore import NVFP4, BlockFloatingPoint, BlockScaled, FloatingPoint, Table
from qtorch.quant import Quantizer

F = FloatingPoint(5, 2)


def compiled(program, backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(program, fullgraph=True, backend=backend)


def test_a_program_has_one_operator_for_each_rounding():
    graphs = []

    def keep(module, inputs):
        graphs.append(module.graph)
        return module.forward

    q = Quantizer(F)
    program = compiled(lambda x: q(q(x * 2)) + qtorch.quantize(x, "mxfp8_e4m3", "stochastic"), keep)
    program(torch.randn(3, 40))
    (graph,) = graphs
    targets = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert sum("qtorch.round" in target for target in targets) == 3
    assert len(targets) < 20  # no Threefry


HALVES, SCALED = "table([0,1,2.5])", "scaled(table([0,0.5,1]),{-1:2},rule=absmax,scale=float32)"


@pytest.mark.parametrize(
    "program",
    [
        lambda x: qtorch.quantize(x, HALVES),
        lambda x: qtorch.quantize(x, "table([-1,0,1e-30,1,inf],thresholds=[-0.5,0,0.5,1.5],beyond=2.5)"),
        lambda x: qtorch.quantize(x, "scaled(e4m3fn,{...:2})"),
        lambda x: qtorch.quantize(x, SCALED),
        lambda x: qtorch.decode(qtorch.encode(x, HALVES), HALVES),
        lambda x: qtorch.quantize(x, Table([0, 1, 2.5])),
        lambda x: qtorch.quantize(x, Table([0, 1, 2.5, float("inf")], beyond=3).overflowing("saturate")),
        lambda x: qtorch.quantize(x, BlockScaled(Table([0, 0.5, 1]), {-1: 2}, "absmax", "float32")),
        lambda x: qtorch.quantize(x, BlockScaled("e4m3fn", {-1: 2})),
        lambda x: qtorch.quantize(x, NVFP4({-1: 2})),
    ],
)
def test_texts_with_points_and_formats_that_a_program_makes(program):
    x = torch.tensor([0.1, 1.1, 2.4, 3.0, 0.6, -7.0])
    assert_same_bits(compiled(program)(x), program(x))


@pytest.mark.parametrize("number", [F, "e4m3fnuz", BlockFloatingPoint(8, 1)], ids=str)
def test_bits_with_overflow_start_and_fewer_bits(number):
    options = {"rounding": "stochastic", "key": 5, "start": 7, "random_bits": 9}
    if number == "e4m3fnuz":
        options["overflow"] = "saturate"
    x = 100 * torch.randn(6, 5).t()
    program = compiled(lambda x: qtorch.quantize(x, number, **options))
    result = program(x)
    expected = qtorch.quantize(x, number, **options)
    assert_same_bits(result, expected)
    assert result.stride() == expected.stride()


def test_blocks_that_do_not_divide():
    """Inductor reads the result as the operator said that it lies."""
    x = torch.randn(3, 5, 120)
    for tensor in (x, x.mT):
        program = compiled(lambda x: qtorch.quantize(x * 2, "mxfp8_e4m3", "stochastic", key=5) + 1, "inductor")
        assert_same_bits(program(tensor), qtorch.quantize(tensor * 2, "mxfp8_e4m3", "stochastic", key=5) + 1)
        assert qtorch.quantize(tensor, "mxfp8_e4m3", "stochastic", key=5).stride() == tensor.stride()
        assert qtorch.encode(tensor, "mxfp8_e4m3", "stochastic", key=5)[0].stride() == tensor.stride()


def test_examples_of_vmap_with_one_key_and_with_their_own():
    x, keys = torch.randn(3, 4, 5), torch.tensor([[0, 1], [0, 2], [7, 3]])
    programs = [
        lambda x, keys: vmap(lambda row: qtorch.quantize(row, F, "stochastic", key=5))(x),
        lambda x, keys: vmap(vmap(lambda row: qtorch.quantize(row, F, "stochastic", key=5)), in_dims=1)(x),
        lambda x, keys: vmap(lambda row, key: qtorch.quantize(row, F, "stochastic", key=key))(x, keys),
        lambda x, keys: vmap(lambda key: qtorch.quantize(x[0], F, "stochastic", key=key))(keys),
        lambda x, keys: vmap(lambda row, key: vmap(lambda row: qtorch.quantize(row, F, "stochastic", key=key))(row))(
            x, keys
        ),
    ]
    for program in programs:
        assert_same_bits(compiled(program)(x, keys), program(x, keys))


def _codes(number, rounding="nearest"):
    return lambda row, key: qtorch.encode(row, number, rounding, key=key if rounding == "stochastic" else None)


def _round_trip(number):
    def program(row, key):
        codes = qtorch.encode(row, number)
        codes, scales = codes if isinstance(codes, tuple) else (codes, None)
        return qtorch.decode(codes, number, scales=scales)

    return program


def test_programs_do_not_depend_on_what_is_imported():
    """Dynamo would read, and guard, the table of thousands of modules if it traced how it is asked for DTensors."""
    guards = torch._dynamo.explain(lambda x: qtorch.quantize(x, "e5m2", "nearest"))(torch.ones(4)).out_guards
    assert guards
    assert not [guard.name for guard in guards if "modules" in guard.name]


# Codes of elements, of blocks and of two levels: one, two and three tensors an example; and numbers of codes.
CODES = {
    "elements": _codes("e5m2"),
    "elements, keys of their own": _codes("e4m3fn", "stochastic"),
    "blocks": _codes("mxfp8_e4m3"),
    "blocks, keys of their own": _codes("mxfp8_e4m3", "stochastic"),
    "two levels": _codes("nvfp4"),
    "decoded": _round_trip("e5m2"),
    "decoded blocks": _round_trip("mxfp8_e4m3"),
    "decoded two levels": _round_trip("nvfp4"),
}


USUAL = ["elements, keys of their own", "blocks", "two levels", "decoded two levels"]


@pytest.mark.parametrize("name", usually(USUAL, CODES))
def test_codes_under_vmap_are_those_of_each_example(name):
    """Of two vmaps, eagerly and in a compiled program; no example's numbers are side by side in memory."""
    x, keys = torch.randn(3, 2, 40).permute(2, 0, 1), torch.tensor([[0, 1], [7, 2], [-1, 3]], dtype=torch.int32)
    each = [tree_flatten(CODES[name](x[:, i, j], keys[i])) for i in range(3) for j in range(2)]
    expected = [torch.stack(same).unflatten(0, (3, 2)) for same in zip(*(leaves for leaves, _ in each), strict=True)]

    def program(x, keys):
        return vmap(lambda x, key: vmap(lambda row: CODES[name](row, key), in_dims=1)(x), in_dims=(1, 0))(x, keys)

    for found in (program(x, keys), compiled(program)(x, keys)):
        leaves, tree = tree_flatten(found)
        assert tree == each[0][1]
        for one, other in zip(leaves, expected, strict=True):
            assert_same_bits(one, other)


@pytest.mark.heavy
def test_codes_under_vmap_in_loops_of_inductor():
    x = torch.randn(3, 40)

    def batched(x):
        codes = vmap(lambda row: qtorch.encode(row * 2, "e5m2"))(x)
        return codes, vmap(lambda row: qtorch.decode(row, "e5m2") * 3)(codes)

    for one, other in zip(compiled(batched, "inductor")(x), batched(x), strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (0, 1, 3, 4, 2), (1, 0, 2, 3, 4)])
def test_results_have_the_strides_that_programs_are_told(order):
    """With a key for each example, in tensors of any order."""
    inverse = sorted(range(5), key=order.__getitem__)
    x = torch.randn([(2, 3, 4, 5, 6)[axis] for axis in order]).permute(inverse)
    inputs = x, torch.arange(4, dtype=torch.int32).view(2, 2), torch.tensor([0, 0, 24], dtype=torch.int32)
    text = F.text, "stochastic", "", "law"
    actual = torch.ops.qtorch.round(*inputs, *text)
    with FakeTensorMode() as fake:
        expected = torch.ops.qtorch.round(*map(fake.from_tensor, inputs), *text)
    assert actual.stride() == expected.stride()


def test_exported_programs_have_none():
    """They may be run where qtorch is not."""
    exported = torch.export.export(torch.nn.Sequential(Quantizer(F)), (torch.randn(5),))
    assert not any("qtorch.round" in str(node.target) for node in exported.graph.nodes)


@pytest.mark.heavy
def test_whole_models_compile():
    """Every quantizer inside took ten seconds once."""
    q = Quantizer(F, F)
    model = torch.nn.Sequential(*(layer for _ in range(2) for layer in (torch.nn.Linear(7, 7), q)))
    x, results = torch.randn(9, 7), []
    for run in (model, compiled(model, "inductor")):
        torch.manual_seed(1)
        model.zero_grad()
        y = run(x)
        y.sum().backward()
        results.append([y, *(p.grad for p in model.parameters())])
    for eager, traced in zip(*results, strict=True):
        assert_same_bits(traced, eager)


def test_texts_that_a_program_reads_first():
    """Dynamo sees of a dictionary what it held when the program began; formats of several new texts must be found."""
    texts = [f"float({exp},{man},bias=3)" for exp, man in ((3, 4), (3, 5), (4, 4))]
    x = torch.randn(50)
    found = compiled(lambda x: tuple(qtorch.quantize(x, text) for text in texts), "eager")(x)
    for one, text in zip(found, texts, strict=True):
        assert_same_bits(one, qtorch.quantize(x, text))
