"""What a file may take of memory and steps when `run_onnx` executes it, and what its operators refuse by name."""

import resource

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qcore.exchange import run_onnx

X = np.ones((2, 2), np.float32)
node, info = helper.make_node, helper.make_tensor_value_info


def constant(name, value):
    return numpy_helper.from_array(np.asarray(value), name)


def model(nodes, constants=(), inputs=("x",), functions=(), domains=(), opset=21, shape=(2, 2)):
    infos = [info(name, 1, shape) for name in inputs]
    graph = helper.make_graph(nodes, "graph", infos, [helper.make_empty_tensor_value_info("y")], list(constants))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    del graph.output[0].type.tensor_type.shape.dim[:]
    graph.output[0].type.tensor_type.elem_type = 1
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)


def sizes(name, *shape):
    return constant(name, np.int64(shape))


# Each would make an array of 2^30 elements and more, some of them only on the way to a small result.
LARGE = {
    "broadcast": (
        [node("ConstantOfShape", ["s"], ["a"]), node("ConstantOfShape", ["t"], ["b"]), node("Add", ["a", "b"], ["y"])],
        [sizes("s", 1 << 15, 1), sizes("t", 1, 1 << 15)],
        "Add",
    ),
    "sizes": ([node("ConstantOfShape", ["s"], ["y"])], [sizes("s", 1 << 20, 1 << 20)], "ConstantOfShape"),
    "expand": ([node("Expand", ["x", "s"], ["y"])], [sizes("s", 1 << 29, 2, 2)], "Expand"),
    "tile": ([node("Tile", ["x", "s"], ["y"])], [sizes("s", 1 << 20, 1 << 20)], "Tile"),
    "pad": ([node("Pad", ["x", "s"], ["y"])], [sizes("s", 0, 0, 1 << 20, 1 << 20)], "Pad"),
    "resize": ([node("Resize", ["x", "", "", "s"], ["y"])], [sizes("s", 1 << 20, 1 << 20)], "Resize"),
    "range": (
        [node("Range", ["a", "b", "c"], ["y"])],
        [constant("a", np.float32(0)), constant("b", np.float32(1e30)), constant("c", np.float32(1))],
        "Range",
    ),
    "one hot": (
        [node("ArgMax", ["x"], ["i"]), node("OneHot", ["i", "s", "v"], ["y"])],
        [constant("s", np.int64(1 << 40)), constant("v", np.float32([0, 1]))],
        "OneHot",
    ),
    "product": (
        [node("ConstantOfShape", ["s"], ["a"]), node("Transpose", ["a"], ["b"]), node("MatMul", ["a", "b"], ["y"])],
        [sizes("s", 1 << 16, 1)],
        "MatMul",
    ),
    "padded convolution": (
        [
            node("Reshape", ["x", "s"], ["a"]),
            node("Conv", ["a", "a"], ["y"], pads=[1 << 40, 1 << 40], strides=[1 << 40]),
        ],
        [sizes("s", 1, 1, 4)],
        "Conv",
    ),
    "padded pool": (
        [
            node("Reshape", ["x", "s"], ["a"]),
            node("MaxPool", ["a"], ["y"], kernel_shape=[1 << 30], pads=[1 << 30, 1 << 30], strides=[1 << 30]),
        ],
        [sizes("s", 1, 1, 4)],
        "MaxPool",
    ),
    **{
        f"{op} of a large window": (
            [
                node("Reshape", ["x", "s"], ["a"]),
                node(op, ["a"], ["y"], kernel_shape=[1 << 40], auto_pad="SAME_UPPER", **more),
            ],
            [sizes("s", 1, 1, 4)],
            op,
        )
        for op, more in (("MaxPool", {}), ("LpPool", {}), ("AveragePool", {"count_include_pad": 1}))
    },
    "unpooled": (
        [
            node("Reshape", ["x", "s"], ["a"]),
            node("MaxPool", ["a"], ["b", "i"], kernel_shape=[1, 1]),
            node("MaxUnpool", ["b", "i", "t"], ["y"], kernel_shape=[1, 1]),
        ],
        [sizes("s", 1, 1, 2, 2), sizes("t", 1, 1, 1 << 20, 1 << 20)],
        "MaxUnpool",
    ),
    "joined": (
        [
            node("ConstantOfShape", ["s"], ["a"]),
            node("SequenceConstruct", ["a"] * 2000, ["b"]),
            node("ConcatFromSequence", ["b"], ["y"], axis=0),
        ],
        [sizes("s", 1 << 18)],
        "ConcatFromSequence",
    ),
    "rounded": (
        [
            node("ConstantOfShape", ["s"], ["a"]),
            node("ConstantOfShape", ["t"], ["b"]),
            node("Quant", ["a", "b", "z", "n"], ["y"], domain="qonnx.custom_op.general"),
        ],
        [sizes("s", 1 << 15, 1), sizes("t", 1, 1 << 15), constant("z", np.float32(0)), constant("n", np.float32(8))],
        "Quant",
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_arrays_are_refused_before_they_are_made(name):
    nodes, constants, operator = LARGE[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=rf"^node '\w+' \({operator}\): .* has shape .*; allowed .* max_elements$"):
        run_onnx(model(nodes, constants, domains=["qonnx.custom_op.general"]), {"x": X})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_the_caller_gives_the_bound():
    small = model([node("Tile", ["x", "s"], ["y"])], [sizes("s", 8, 8)])
    assert run_onnx(small, {"x": X}, max_elements=256)["y"].shape == (16, 16)
    with pytest.raises(ValueError, match=r"node 'y' \(Tile\): the result 'y' has shape \(16, 16\).* at most 255 elem"):
        run_onnx(small, {"x": X}, max_elements=255)


def test_a_block_may_be_longer_than_what_it_divides():
    blocks = model([node("QuantizeLinear", ["x", "s"], ["y"], block_size=1 << 27, axis=1)], [constant("s", X[:, :1])])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run_onnx(blocks, {"x": X})["y"].tolist() == [[1, 1], [1, 1]]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def loop(count, condition, rows=False):
    """A Loop that adds 1 to x, and returns the sum of each step."""
    nodes = [node("Add", ["u", "u"], ["w"]), node("Identity", ["c"], ["d"])] + [node("Neg", ["w"], ["v"])] * rows
    outputs = [info("d", TensorProto.BOOL, []), info("w", 1, [2, 2]), *[info("v", 1, [2, 2])] * rows]
    inputs = [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("u", 1, [2, 2])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    constants = [constant("m", np.int64(3)), constant("k", np.array(True))]
    return model([node("Loop", [count, condition, "x"], ["y", "r"][: 1 + rows], name="again", body=body)], constants)


def test_loops_end_at_a_number_of_steps():
    assert run_onnx(loop("m", ""), {"x": X})["y"].tolist() == (8 * X).tolist()
    assert run_onnx(loop("m", "k"), {"x": X}, max_steps=10)["y"].tolist() == (8 * X).tolist()
    for endless in (loop("", "k"), loop("", "")):
        with pytest.raises(ValueError, match=r"^node .*: more than 50 nodes and steps of loops ran; .* max_steps$"):
            run_onnx(endless, {"x": X}, max_steps=50)
    assert run_onnx(loop("m", "", True), {"x": X}, ["r"])["r"].shape == (3, 2, 2)
    with pytest.raises(ValueError, match=r"node 'again' \(Loop\): a result of all steps has shape \(3, 2, 2\)"):
        run_onnx(loop("m", "", True), {"x": X}, max_elements=11)


def test_functions_that_call_functions_twice_end_at_a_number_of_steps():
    """Forty functions run 2^40 nodes."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "f0", ["a"], ["b"], [node("Neg", ["a"], ["b"])], opsets)]
    for place in range(40):
        calls = [node(f"f{place}", [a], [b], domain="own") for a, b in (("a", "c"), ("c", "b"))]
        functions.append(helper.make_function("own", f"f{place + 1}", ["a"], ["b"], calls, opsets))
    calling = [node("f40", ["x"], ["y"], domain="own")]
    with pytest.raises(ValueError, match="max_steps"):
        run_onnx(model(calling, functions=functions[::-1], domains=["own"]), {"x": X}, max_steps=1000)
    few = model([node("f3", ["x"], ["y"], domain="own")], functions=functions[3::-1], domains=["own"])
    assert run_onnx(few, {"x": X})["y"].tolist() == X.tolist()  # eight times, in any order of the functions
    functions[0].node[0].CopyFrom(node("f2", ["a"], ["b"], domain="own"))
    circle = model([node("f3", ["x"], ["y"], domain="own")], functions=functions[:4], domains=["own"])
    with pytest.raises(ValueError, match=r"function 'f\d' calls itself"):
        run_onnx(circle, {"x": X})


def test_functions_may_leave_out_inputs_and_have_defaults():
    opsets = [helper.make_opsetid("", 21)]
    body = [node("LeakyRelu", ["a"], ["c"]), node("Clip", ["c", "low"], ["b"])]
    body[0].attribute.add(name="alpha", ref_attr_name="slope", type=1)
    default = [helper.make_attribute("slope", 0.5)]
    function = helper.make_function("own", "f", ["a", "low"], ["b"], body, opsets, [], default)
    for given, wanted in (({}, -1.0), ({"slope": 0.25}, -0.5)):
        calling = model([node("f", ["x"], ["y"], domain="own", **given)], functions=[function], domains=["own"])
        assert run_onnx(calling, {"x": -2 * X})["y"][0, 0] == wanted


ONE = [constant(name, np.float32(1)) for name in ("scale", "one")]
QUANT = ["x", "scale", "zero", "bits"]


def quant(bits):
    constants = [*ONE, constant("zero", np.float32(0)), constant("bits", np.float32(bits))]
    return [node("Quant", QUANT, ["y"], domain="qonnx.custom_op.general")], constants


def int_quant(bits):
    nodes, constants = quant(bits)
    nodes[0].op_type = "IntQuant"
    return nodes, constants


def float_quant(bits, place):
    widths = [8.0, 3.0]
    widths[place] = bits
    constants = [*ONE, *(constant(name, np.float32(one)) for name, one in zip("em", widths, strict=True))]
    return [
        node("FloatQuant", ["x", "scale", "e", "m", "one", "one"], ["y"], domain="qonnx.custom_op.general")
    ], constants


def truncated(bits, *more):
    constants = [
        *ONE,
        constant("zero", np.float32(0)),
        constant("bits", np.float32(bits)),
        constant("n", np.float32(4)),
    ]
    inputs = ["x", "scale", "zero", *(more or ["bits"]), "n"]
    inputs = [*inputs[:-1], "one", "bits"] if more else inputs
    return [node("Trunc", inputs, ["y"], domain="qonnx.custom_op.general")], constants


@pytest.mark.parametrize("bits", [np.nan, -5, 0, 1.5, np.inf, 1e30])
def test_widths_are_whole_numbers(bits):
    for nodes, constants in (quant(bits), int_quant(bits), truncated(bits), truncated(bits, "n")):
        with pytest.raises(
            ValueError, match=r"node 'y' \((Quant|IntQuant|Trunc)\): .* allowed are whole numbers from 1"
        ):
            run_onnx(model(nodes, constants, domains=["qonnx.custom_op.general"]), {"x": X})
    for place in range(2):
        if bits != 0:
            nodes, constants = float_quant(bits, place)
            with pytest.raises(ValueError, match=r"node 'y' \(FloatQuant\): .* allowed are whole numbers from 0"):
                run_onnx(model(nodes, constants, domains=["qonnx.custom_op.general"]), {"x": X})


def windows(**attributes):
    nodes = [node("Reshape", ["x", "s"], ["a"]), node("ConvInteger", ["q", "q"], ["i"], **attributes)]
    nodes.insert(1, node("Cast", ["a"], ["q"], to=TensorProto.UINT8))
    return [*nodes, node("Cast", ["i"], ["y"], to=1)], [sizes("s", 1, 1, 2, 2)]


REFUSED = {
    "types of Where": ([node("Where", ["x", "x", "x"], ["y"])], [], r"\(Where\): .*tensor\(float\)"),
    "types of Add": ([node("Cast", ["x"], ["i"], to=7), node("Add", ["x", "i"], ["y"])], [], r"\(Add\): .*int64"),
    "shapes": (
        [node("Add", ["x", "w"], ["y"])],
        [constant("w", np.ones(3, np.float32))],
        r"\(Add\): .*[Ii]ncompatible",
    ),
    "num_outputs": (
        [node("Split", ["x"], ["y", "z"], num_outputs=1 << 24)],
        [],
        r"\(Split\): num_outputs=16777216 of 2 outputs; allowed is 2",
    ),
    "NaN in Range": (
        [node("Range", ["a", "b", "b"], ["y"])],
        [constant("a", np.float32(np.nan)), constant("b", np.float32(1))],
        r"\(Range\): start is nan; allowed are finite",
    ),
    "block_size": (
        [node("DequantizeLinear", ["q", "s"], ["y"], block_size=-3)],
        [constant("q", np.ones((2, 2), np.int8)), constant("s", X)],
        r"\(DequantizeLinear\): .*block_size",
    ),
    "blocks that do not fit": (
        [node("DequantizeLinear", ["q", "s"], ["y"], block_size=2)],
        [constant("q", np.ones((2, 2), np.int8)), constant("s", X)],
        r"\(DequantizeLinear\): x_scale has shape \(2, 2\) with block_size=2; allowed are \(2, 1\) for blocks",
    ),
    "pads": (*windows(pads=[0, 0, -1, 0]), r"\(ConvInteger\): .*pads"),
    "strides": (*windows(strides=[0, 1]), r"\(ConvInteger\): .*strides"),
    "blocksize": (
        [node("Reshape", ["x", "s"], ["a"]), node("DepthToSpace", ["a"], ["y"], blocksize=0)],
        [sizes("s", 1, 4, 1, 1)],
        r"\(DepthToSpace\): blocksize=\[0\]; allowed are ints from 1 on",
    ),
    "types of zero points": (
        [node("QLinearMatMul", ["q", "s", "z", "q", "s", "z", "s", "z"], ["i"]), node("Cast", ["i"], ["y"], to=1)],
        [constant("q", np.ones((2, 2), np.int8)), constant("s", np.float32(1)), constant("z", np.uint8(1))],
        r"\(QLinearMatMul\): .* pair .* same type",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nodes_say_what_does_not_fit(name):
    nodes, constants, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        run_onnx(model(nodes, constants), {"x": X})


def test_sizes_behind_a_zero_are_checked():
    tensor = TensorProto(name="w", dims=[0, 1 << 62], data_type=1, raw_data=b"")
    with pytest.raises(ValueError, match=r"tensor 'w' has shape \(0, 4611686018427387904\); allowed are at most"):
        run_onnx(model([node("Add", ["x", "w"], ["y"])], [tensor]), {"x": X})
    inner = node("Constant", [], ["w"], value=tensor)
    with pytest.raises(ValueError, match="tensor 'w' has shape"):
        run_onnx(model([inner, node("Add", ["x", "w"], ["y"])]), {"x": X})


def test_a_function_without_its_result_is_named():
    function = helper.make_function(
        "own", "f", ["a"], ["b"], [node("Relu", ["a"], ["c"])], [helper.make_opsetid("", 21)]
    )
    with pytest.raises(ValueError, match="function 'f' has no result 'b'; allowed are what its nodes compute"):
        run_onnx(model([node("f", ["x"], ["y"], domain="own")], functions=[function], domains=["own"]), {"x": X})


def test_sizes_of_minus_one_are_open():
    """As Paddle2ONNX writes them."""
    relu = model([node("Relu", ["x"], ["y"])], shape=(-1, 2))
    assert run_onnx(relu, {"x": -np.ones((5, 2), np.float32)})["y"].tolist() == [[0, 0]] * 5
    with pytest.raises(ValueError, match=r"input 'x' has shape \(5, 3\); allowed is \(any, 2\)"):
        run_onnx(relu, {"x": np.ones((5, 3), np.float32)})


def test_narrow_inputs_lie_in_their_range():
    graph = helper.make_graph(
        [node("DequantizeLinear", ["q", "s"], ["y"])],
        "narrow",
        [info("q", TensorProto.INT4, [2])],
        [info("y", 1, [2])],
        [constant("s", np.float32(0.5))],
    )
    narrow = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert run_onnx(narrow, {"q": np.int8([-8, 7])})["y"].tolist() == [-4, 3.5]
    with pytest.raises(ValueError, match="input 'q' of int4 has -9 to 7; allowed are -8 to 7"):
        run_onnx(narrow, {"q": np.int8([-9, 7])})


@pytest.mark.parametrize("bound", ["max_elements", "max_steps"])
def test_bounds_are_ints(bound):
    relu = model([node("Relu", ["x"], ["y"])])
    for wrong in (0, 1.5, "many", True):
        with pytest.raises((TypeError, ValueError), match=bound):
            run_onnx(relu, {"x": X}, **{bound: wrong})


def test_constants_within_functions_and_loops_are_checked():
    tensor = TensorProto(name="w", dims=[2], data_type=1, raw_data=b"1234")
    made = [node("Constant", [], ["w"], value=tensor), node("Add", ["a", "w"], ["b"])]
    function = helper.make_function("own", "f", ["a"], ["b"], made, [helper.make_opsetid("", 21)])
    with pytest.raises(ValueError, match="tensor 'w' of float32 has shape"):
        run_onnx(model([node("f", ["x"], ["y"], domain="own")], functions=[function], domains=["own"]), {"x": X})


def test_the_number_of_functions_is_bounded():
    """The package keeps a list of all in each."""
    opsets = [helper.make_opsetid("", 21)]
    functions = [helper.make_function("own", f"f{one}", ["a"], ["a"], [], opsets) for one in range(1001)]
    with pytest.raises(ValueError, match="the model has 1001 functions; allowed are 1000"):
        run_onnx(model([node("f0", ["x"], ["y"], domain="own")], functions=functions, domains=["own"]), {"x": X})
