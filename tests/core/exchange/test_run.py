"""`run_onnx` beside onnxruntime and onnx's own reference, and files that are not models."""

import numpy as np
import onnxruntime
import pytest
from onnx import AttributeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_cases import cases, one_node

from qcore.exchange import run_onnx


def runtime(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)


def test_operators_equal_onnxruntimes():
    compared = 0
    for case in cases():
        wanted = runtime(*one_node(case))
        found = run_onnx(*one_node(case, wanted)).values()
        for theirs, ours in zip(wanted, map(np.asarray, found), strict=True):
            assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape), case
            if case.exact:
                assert theirs.tobytes() == ours.tobytes(), case
            else:
                np.testing.assert_allclose(ours, theirs, case.tolerance, case.tolerance, err_msg=case.op)
            compared += 1
    assert compared > 300


def graph(nodes, inputs, outputs, constants=(), functions=(), opset=25, domains=()):
    infos = [
        [helper.make_tensor_value_info(name, type, shape) for name, type, shape in infos] for infos in (inputs, outputs)
    ]
    made = helper.make_graph(nodes, "graph", *infos, list(constants))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(made, opset_imports=opsets, ir_version=13, functions=list(functions))


def numbers():
    found = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    ends = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 480, 57344, 61440, 65536, 240, 248, 2**-9, 2**-10])
    return np.concatenate([ends, -ends, found * 100, found / 100, np.arange(-40, 40, dtype=np.float32) / 8])


def assert_equal_but_nan(x, theirs, ours):
    same = (theirs.view(np.int32) == ours.view(np.int32)) | (np.isnan(theirs) & np.isnan(ours))
    assert same.all(), (x[~same], theirs[~same], ours[~same])


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1"])
def test_small_floats_equal_the_references(name, saturate):
    """onnxruntime has no float4; if it does not saturate, 480 is 448 in e4m3fn, and 61440 is NaN in e5m2."""
    x, type = numbers(), getattr(TensorProto, name)
    x = x[~np.isnan(x)] if name == "FLOAT4E2M1" else x
    nodes = [
        helper.make_node("Cast", ["x"], ["small"], to=type, saturate=saturate),
        helper.make_node("Cast", ["small"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], saturate=saturate),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["z"]),
    ]
    constants = [helper.make_tensor("scale", 1, [], [0.5]), helper.make_tensor("zero", type, [], [0])]
    outputs = [(one, TensorProto.FLOAT, [x.size]) for one in "yz"]
    model = graph(nodes, [("x", 1, [x.size])], outputs, constants, opset=23)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(["y"], {"x": x})
    found = run_onnx(model, {"x": x})
    assert_equal_but_nan(x, wanted[0], found["y"])
    assert_equal_but_nan(x, run_onnx(model, {"x": x / np.float32(0.5)})["y"] / 2, found["z"])
    if name != "FLOAT4E2M1":
        model.opset_import[0].version = 21
        beyond = [
            (one >= low) & (one < high) for one in (abs(x), abs(x) * 2) for low, high in ((480, 496), (61440, 61441))
        ]
        kept = ~np.any(beyond, 0)
        for theirs, ours in zip(runtime(model, {"x": x}), found.values(), strict=True):
            assert_equal_but_nan(x[kept], theirs[kept], ours[kept])


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two_equal_onnxruntimes(mode, saturate):
    """onnx's reference rounds 2^-127 up to 2^-126, and makes NaN of an infinity that saturates."""
    x = abs(numbers())
    x = np.concatenate([x, np.float32([2**-127, 2**-126, 3e38, 2**127, 1.5, 3, 6, 12, 2**-128, 1e-45])])
    nodes = [
        helper.make_node("Cast", ["x"], ["power"], to=TensorProto.FLOAT8E8M0, saturate=saturate, round_mode=mode),
        helper.make_node("Cast", ["power"], ["y"], to=TensorProto.FLOAT),
    ]
    model = graph(nodes, [("x", 1, [x.size])], [("y", 1, [x.size])])
    assert_equal_but_nan(x, runtime(model, {"x": x})[0], run_onnx(model, {"x": x})["y"])


@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2"])
def test_narrow_integers_equal_onnxruntimes(name):
    """Quantized for a whole array, along an axis and in blocks, with a zero point of their type."""
    x, type = np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32), getattr(TensorProto, name)
    scales = np.float32([[0.5, 0.25, 0.125]] * 4)
    nodes, outputs, constants = [], [], []
    for place, (scale, attributes) in enumerate(
        [(scales[0, 0], {}), (scales[0, :1].repeat(6), {"axis": 1}), (scales, {"axis": 1, "block_size": 2})]
    ):
        constants += [
            helper.make_tensor(f"s{place}", 1, scale.shape, scale.reshape(-1)),
            helper.make_tensor(f"z{place}", type, scale.shape, np.ones(scale.size)),
        ]
        parameters = [f"s{place}", f"z{place}"]
        nodes += [
            helper.make_node("QuantizeLinear", ["x", *parameters], [f"q{place}"], **attributes),
            helper.make_node("Cast", [f"q{place}"], [f"i{place}"], to=TensorProto.INT8),
            helper.make_node("DequantizeLinear", [f"q{place}", *parameters], [f"y{place}"], **attributes),
        ]
        outputs += [(f"i{place}", TensorProto.INT8, x.shape), (f"y{place}", 1, x.shape)]
    model = graph(nodes, [("x", 1, x.shape)], outputs, constants)
    for theirs, ours in zip(runtime(model, {"x": x}), run_onnx(model, {"x": x}).values(), strict=True):
        assert theirs.tobytes() == ours.tobytes()
    found = run_onnx(model, {"x": x}, outputs=["q0"])["q0"]
    assert found.dtype == (np.uint8 if name.startswith("U") else np.int8)
    assert (found == run_onnx(model, {"x": x})["i0"].view(found.dtype)).all()


def control():
    """A model with a function, a branch, a loop, a scan, and shapes that are computed."""
    one = [helper.make_tensor("one", 1, [], [1.0])]
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Add", ["before", "one"], ["after"]),
            helper.make_node("Identity", ["going"], ["still"]),
            helper.make_node("Mul", ["after", "after"], ["square"]),
        ],
        "body",
        [info("step", TensorProto.INT64, []), info("going", TensorProto.BOOL, []), info("before", 1, [2, 3])],
        [info("still", TensorProto.BOOL, []), info("after", 1, [2, 3]), info("square", 1, [2, 3])],
        one,
    )
    adds = helper.make_graph(
        [helper.make_node("Add", ["sum", "row"], ["next"]), helper.make_node("Identity", ["next"], ["out"])],
        "adds",
        [info("sum", 1, [3]), info("row", 1, [3])],
        [info("next", 1, [3]), info("out", 1, [3])],
    )
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], ["chosen"])], op, [], [info("chosen", 1, [2, 3])])
        for op in ("Neg", "Abs")
    ]
    function = helper.make_function(
        "own",
        "Scaled",
        ["a"],
        ["b"],
        [helper.make_node("LeakyRelu", ["a"], ["b"])],
        [helper.make_opsetid("", 21)],
        ["slope"],
    )
    function.node[0].attribute.add(name="alpha", ref_attr_name="slope", type=AttributeProto.FLOAT)
    nodes = [
        helper.make_node("Loop", ["count", "", "x"], ["end", "squares"], body=body),
        helper.make_node("Scan", ["zeros", "x"], ["sum", "sums"], body=adds, num_scan_inputs=1),
        helper.make_node("If", ["flag"], ["branch"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Scaled", ["x"], ["scaled"], domain="own", slope=0.5),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "first", "second"], ["columns"]),
        helper.make_node("Concat", ["columns", "minus"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["turned"]),
    ]
    constants = [
        helper.make_tensor("count", TensorProto.INT64, [], [3]),
        helper.make_tensor("flag", TensorProto.BOOL, [], [True]),
        helper.make_tensor("first", TensorProto.INT64, [1], [1]),
        helper.make_tensor("second", TensorProto.INT64, [1], [2]),
        helper.make_tensor("minus", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("zeros", 1, [3], [0, 0, 0]),
    ]
    outputs = [("end", [2, 3]), ("squares", [3, 2, 3]), ("sum", [3]), ("sums", [2, 3]), ("branch", [2, 3])]
    outputs += [("scaled", [2, 3]), ("turned", [3, 2])]
    outputs = [(name, 1, shape) for name, shape in outputs]
    x = np.float32([[1, -2, 3], [-4, 5, -6]])
    return graph(nodes, [("x", 1, [2, 3])], outputs, constants, [function], 21, ["own"]), x


def test_functions_branches_loops_and_scans_equal_onnxruntimes():
    model, x = control()
    for theirs, ours in zip(runtime(model, {"x": x}), run_onnx(model, {"x": x}).values(), strict=True):
        assert theirs.tobytes() == ours.tobytes()


def small(node=None, constants=(), shape=(3,)):
    nodes = [helper.make_node("Relu", ["x"], ["y"])] if node is None else [node]
    return graph(nodes, [("x", 1, shape)], [("y", 1, [None])], constants, opset=21)


def hostile_tensor(**fields):
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0], raw=False)
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(tensor, name)[:]
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    return tensor


ODD = helper.make_node("Strange", ["x"], ["y"], name="odd", domain="own")
ADD = helper.make_node("Add", ["x", "w"], ["y"], name="sum")
X = np.zeros(3, np.float32)
WRONG = {
    "no model": (lambda: b"not a model", X, "file is not"),
    "truncated": (lambda: small().SerializeToString()[:-9], X, "file is not"),
    "a negative size": (lambda: small(ADD, [hostile_tensor(dims=[-2])]), X, r"tensor 'w' has shape \(-2,\)"),
    "a huge size": (lambda: small(ADD, [hostile_tensor(dims=[2**40])]), X, "tensor 'w' of float32 has shape"),
    "too few bytes": (
        lambda: small(ADD, [hostile_tensor(float_data=[], raw_data=b"1234")]),
        X,
        "4 bytes; allowed are 8",
    ),
    "an unknown type": (lambda: small(ADD, [hostile_tensor(data_type=8)]), X, "tensor 'w' has element type 8"),
    "another file": (lambda: small(ADD, [hostile_tensor(data_location=1)]), X, "tensor 'w' lies in another file"),
    "an unknown operator": (
        lambda: graph([ODD], [("x", 1, [3])], [("y", 1, [3])], opset=21, domains=["own"]),
        X,
        "node 'odd' \\(Strange\\): the operator of domain 'own' is not supported; allowed are those of onnx.reference",
    ),
    "shapes that do not broadcast": (lambda: small(ADD, [hostile_tensor()]), X, "node 'sum' \\(Add\\)"),
    "a result that is too large": (
        lambda: small(
            helper.make_node("Expand", ["x", "w"], ["y"], name="big"),
            [helper.make_tensor("w", TensorProto.INT64, [2], [2**40, 3])],
        ),
        X,
        "node 'big' \\(Expand\\).*at most 268435456 elements, of max_elements",
    ),
    "a shape that does not fit": (
        lambda: small(
            helper.make_node("Reshape", ["x", "w"], ["y"], name="bent"),
            [helper.make_tensor("w", TensorProto.INT64, [1], [4])],
        ),
        X,
        "node 'bent' \\(Reshape\\)",
    ),
    "an input of another shape": (small, np.zeros(4, np.float32), r"input 'x' has shape \(4,\); allowed is \(3\)"),
    "an input of another dtype": (small, np.zeros(3), "input 'x' has dtype float64; allowed is float32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_and_inputs_are_named(name):
    make, x, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        run_onnx(make(), {"x": x})


def test_every_truncation_is_a_value_error():
    whole = control()[0].SerializeToString()
    for length in range(0, len(whole), 37):
        with pytest.raises(ValueError, match=r"file is not|reads|lacks|inputs"):
            run_onnx(whole[:length], {"x": np.zeros((2, 3), np.float32)})


def test_wrong_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="inputs lacks 'x'"):
        run_onnx(small(), {})
    with pytest.raises(ValueError, match="inputs has 'z'"):
        run_onnx(small(), {"x": X, "z": X})
    with pytest.raises(ValueError, match="outputs names 'z'"):
        run_onnx(small(), {"x": X}, ["z"])
    for outputs in ("y", 3, {"y"}):
        with pytest.raises(TypeError, match=r"outputs is a (str|int|set); allowed are None, and a list of names"):
            run_onnx(small(), {"x": X}, outputs)  # type: ignore[arg-type]
    assert run_onnx(small(), {"x": X}, []) == {}
    for names in ([["y"]], [3], ("y", None)):
        with pytest.raises(TypeError, match=r"outputs: a name is a .*; allowed is a name of a tensor"):
            run_onnx(small(), {"x": X}, names)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="file is a int"):
        run_onnx(3, {"x": X})
    with pytest.raises(TypeError, match="input 'x' is a list"):
        run_onnx(small(), {"x": [1.0]})  # type: ignore[dict-item]
    path = tmp_path / "model.onnx"
    path.write_bytes(small().SerializeToString())
    assert run_onnx(path, {"x": X - 1})["y"].tolist() == [0, 0, 0]
