"""Models of one node for each operator of `run_onnx`; results of integers, and floats of defined bits, are exact."""

from collections import namedtuple

import numpy as np
from onnx import TensorProto as T
from onnx import helper

Case = namedtuple("Case", "op inputs opset exact outputs tolerance attributes")


def one_node(case, results=None, domain=""):
    """The model of a case, and its inputs by name; outputs have the types of the arrays `results`, where known."""
    arrays = {f"i{place}": one for place, one in enumerate(case.inputs) if one is not None}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in arrays.items()
    ]
    names = [f"i{place}" if one is not None else "" for place, one in enumerate(case.inputs)]
    outputs = [f"o{place}" for place in range(case.outputs)]
    if results is None:
        out = [helper.make_empty_tensor_value_info(name) for name in outputs]
    else:
        types = [helper.np_dtype_to_tensor_dtype(one.dtype) for one in results]
        out = [
            helper.make_tensor_value_info(name, type, one.shape)
            for name, type, one in zip(outputs, types, results, strict=True)
        ]
    node = helper.make_node(case.op, names, outputs, name="n", domain=domain, **case.attributes)
    opsets = [helper.make_opsetid("", case.opset)] + [helper.make_opsetid(domain, 1)] * bool(domain)
    graph = helper.make_graph([node], "one node", infos, out)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10 if case.opset < 23 else 11), arrays


def cases():
    """All cases."""
    rng = np.random.default_rng(0)
    found = []

    f4 = np.float32

    def positive(*shape):
        return abs(floats(*shape))

    def floats(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    def ints(dtype, *shape, lo=None, hi=None):
        info = np.iinfo(dtype)
        low, high = info.min if lo is None else lo, info.max if hi is None else hi
        return rng.integers(low, high + 1, shape).astype(dtype)

    def go(op, inputs, opset=21, exact=True, nout=1, tol=2e-6, **attributes):
        arrays = [one if one is None else np.asarray(one) for one in inputs]
        found.append(Case(op, arrays, opset, exact, nout, tol, attributes))

    x = floats(4, 6, 5, 5)
    x.reshape(-1)[:6] = [np.inf, -np.inf, np.nan, 0.5, -0.5, 1e9]
    for dt in (np.uint8, np.int8, np.uint16, np.int16):
        zp = ints(dt)
        go("QuantizeLinear", [x, f4(0.037), zp])
        go("QuantizeLinear", [x, positive(6) * 0.1 + 0.01, ints(dt, 6)], axis=1)
        q = ints(dt, 4, 6, 5)
        go("DequantizeLinear", [q, f4(0.037), zp])
        go("DequantizeLinear", [q, positive(6), ints(dt, 6)], axis=1)
        go("QuantizeLinear", [floats(4, 6), positive(4, 2) * 0.1 + 0.01, ints(dt, 4, 2)], axis=1, block_size=3)
        go(
            "DequantizeLinear",
            [ints(dt, 4, 6), positive(4, 2) * 0.1 + 0.01, ints(dt, 4, 2)],
            axis=1,
            block_size=3,
        )
    go("QuantizeLinear", [x, f4(0.037), np.uint8(7)], opset=10)
    go("QuantizeLinear", [x, f4(0.037)], opset=13)
    go("DequantizeLinear", [ints(np.int32, 4, 6), f4(0.001)])
    go("DynamicQuantizeLinear", [floats(5, 7)], nout=3)
    go("DynamicQuantizeLinear", [positive(5, 7)], nout=3)
    go("DynamicQuantizeLinear", [np.zeros((2, 3), np.float32)], nout=3)
    go("DynamicQuantizeLinear", [-positive(5, 7)], nout=3)
    for a in (np.uint8, np.int8):
        for b in (np.uint8, np.int8):
            go("MatMulInteger", [ints(a, 5, 7), ints(b, 7, 3), ints(a), ints(b)])
            go("MatMulInteger", [ints(a, 2, 5, 7), ints(b, 7, 3), ints(a), ints(b, 3)])
    for a, b in ((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)):
        go(
            "QLinearMatMul",
            [
                ints(a, 5, 70),
                f4(0.02),
                ints(a),
                ints(b, 70, 3),
                f4(0.03),
                ints(b),
                f4(0.09),
                ints(a),
            ],
        )
        go(
            "QLinearMatMul",
            [
                ints(a, 5, 70),
                f4(0.02),
                ints(a),
                ints(b, 70, 3),
                positive(3) * 0.02 + 0.001,
                (np.zeros(3, b)),
                f4(0.09),
                ints(a),
            ],
        )
        for at in ({}, {"pads": [1, 2, 0, 1], "strides": [2, 1], "dilations": [1, 2]}, {"group": 2}):
            w = ints(b, 4, 3 if at.get("group") else 6, 3, 2)
            go(
                "QLinearConv",
                [
                    ints(a, 2, 6, 9, 8),
                    f4(0.02),
                    ints(a),
                    w,
                    positive(4) * 0.02 + 0.001,
                    np.zeros(4, b),
                    f4(0.2),
                    ints(a),
                    ints(np.int32, 4, lo=-5000, hi=5000),
                ],
                **at,
            )
            go(
                "QLinearConv",
                [
                    ints(a, 2, 6, 9, 8),
                    f4(0.02),
                    ints(a),
                    w,
                    f4(0.01),
                    b(3) if b is np.uint8 else b(0),
                    f4(0.2),
                    ints(a),
                ],
                **at,
            )
            go("ConvInteger", [ints(a, 2, 6, 9, 8), w, ints(a), ints(b) if b is np.uint8 else b(0)], **at)
    f = floats(3, 4, 5)
    f2 = floats(4, 5)
    f3 = positive(3, 4, 5)
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        go(op, [f, f2])
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mod"):
        for dt in (np.int32, np.int64):
            go(op, [ints(dt, 3, 4, lo=-50, hi=50), ints(dt, 4, lo=1, hi=9)])
    for op in ("Abs", "Neg", "Ceil", "Floor", "Round", "Relu", "Sign", "Sqrt", "Reciprocal"):
        go(op, [f3 if op == "Sqrt" else f])
    for op in (
        "Exp",
        "Log",
        "Sigmoid",
        "Tanh",
        "Erf",
        "Softplus",
        "Softsign",
        "Elu",
        "Selu",
        "LeakyRelu",
        "HardSigmoid",
        "HardSwish",
        "Sin",
        "Cos",
        "ThresholdedRelu",
        "Celu",
    ):
        go(op, [f3 if op == "Log" else f], exact=False)
    go("Gelu", [f], exact=False)
    go("Gelu", [f], exact=False, approximate="tanh")
    go("Pow", [f3, f2], exact=False)
    go("Pow", [f, f4(2)], exact=False)
    go("PRelu", [f, f2])
    go("Clip", [f, f4(-0.5), f4(0.7)])
    go("Clip", [f, None, f4(0.7)])
    go("Clip", [f], opset=6, min=-0.2, max=0.3)
    for op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
        go(op, [f, f2])
    go("And", [f > 0, f2 > 0])
    go("Or", [f > 0, f2 > 0])
    go("Xor", [f > 0, f2 > 0])
    go("Not", [f > 0])
    go("Where", [f > 0, f, f2])
    go("IsNaN", [x])
    go("IsInf", [x])
    go("IsInf", [x], detect_negative=0)
    for op in (
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
    ):
        go(op, [f, np.int64([1])], exact=op in ("ReduceMax", "ReduceMin"))
        go(op, [f], exact=False, keepdims=0)
        go(op, [f, np.int64([0, -1])], exact=False)
        go(op, [f], opset=11, exact=False, axes=[0, 2])
    go("ReduceSum", [ints(np.int32, 3, 4), np.int64([1])])
    go("ReduceMax", [ints(np.int32, 3, 4), np.int64([1])])
    go("ReduceMin", [ints(np.int8, 3, 4), np.int64([1])])
    go("ReduceMax", [ints(np.uint8, 3, 4), np.int64([1])])
    go("ArgMax", [f], axis=1)
    go("ArgMin", [f], axis=-1, keepdims=0)
    go("Softmax", [f], exact=False)
    go("Softmax", [f], opset=11, exact=False, axis=1)
    go("LogSoftmax", [f], exact=False, axis=1)
    go("CumSum", [ints(np.int32, 3, 4, lo=-9, hi=9), np.int64(1)])
    go("CumSum", [ints(np.int32, 3, 4, lo=-9, hi=9), np.int64(0)], exclusive=1, reverse=1)
    go("MatMul", [floats(2, 3, 4), floats(4, 5)], exact=False)
    go("MatMul", [floats(4), floats(4, 5)], exact=False)
    go("Gemm", [floats(4, 3), floats(5, 4), floats(5)], exact=False, transA=1, transB=1, alpha=0.5, beta=2.0)
    for at in (
        {},
        {"pads": [1, 2, 0, 1], "strides": [2, 1], "dilations": [1, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": "VALID"},
    ):
        go("Conv", [floats(2, 6, 9, 8), floats(4, 6, 3, 2), floats(4)], exact=False, tol=1e-5, **at)
        if "auto_pad" not in at:
            go("ConvTranspose", [floats(2, 6, 9, 8), floats(6, 4, 3, 2), floats(4)], exact=False, tol=1e-5, **at)
    go(
        "ConvTranspose",
        [floats(2, 6, 9, 8), floats(6, 2, 3, 3)],
        exact=False,
        tol=1e-5,
        group=2,
        strides=[2, 3],
        output_padding=[1, 2],
        pads=[1, 1, 1, 1],
    )
    for at in (
        {"kernel_shape": [3, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"},
    ):
        go("MaxPool", [floats(2, 3, 8, 9)], **at)
        go("AveragePool", [floats(2, 3, 8, 9)], exact=False, **at)
        go("AveragePool", [floats(2, 3, 8, 9)], exact=False, count_include_pad=1, **at)
        go("MaxPool", [ints(np.uint8, 2, 3, 8, 9)], **at)
        go("MaxPool", [ints(np.int8, 2, 3, 8, 9)], **at)
    go("GlobalAveragePool", [floats(2, 3, 8, 9)], exact=False)
    go("GlobalMaxPool", [floats(2, 3, 8, 9)])
    go("BatchNormalization", [floats(2, 3, 4), floats(3), floats(3), floats(3), positive(3)], exact=False)
    go("LayerNormalization", [floats(2, 3, 4), floats(4), floats(4)], exact=False)
    go("LayerNormalization", [floats(2, 3, 4), floats(3, 4)], exact=False, axis=1)
    go("InstanceNormalization", [floats(2, 3, 4), floats(3), floats(3)], exact=False, tol=1e-5)
    go("GroupNormalization", [floats(2, 4, 4), floats(4), floats(4)], exact=False, num_groups=2, tol=1e-5)
    go("RMSNormalization", [floats(2, 3, 4), floats(4)], exact=False, opset=23)
    go("Reshape", [f, np.int64([0, -1])])
    go("Transpose", [f], perm=[2, 0, 1])
    go("Transpose", [f])
    go("Flatten", [f], axis=2)
    go("Flatten", [f], axis=-1)
    go("Squeeze", [f[:, :1], np.int64([1])])
    go("Squeeze", [f[:, :1]])
    go("Unsqueeze", [f, np.int64([0, -1])])
    go("Unsqueeze", [f], opset=11, axes=[0, 2])
    go("Concat", [f, f], axis=1)
    go("Split", [floats(6, 2)], nout=3, num_outputs=3)
    go("Split", [floats(7, 2)], nout=3, num_outputs=3)
    go("Split", [floats(7, 2), np.int64([1, 2, 4])], nout=3)
    go("Split", [floats(6, 2)], nout=2, opset=11)
    go("Slice", [f, np.int64([0, 1]), np.int64([2, 10**9]), np.int64([0, 2]), np.int64([1, 2])])
    go("Slice", [f, np.int64([-1]), np.int64([-(2**62)]), np.int64([2]), np.int64([-2])])
    go("Slice", [f], opset=9, starts=[1], ends=[3], axes=[1])
    go("Gather", [f, np.int64([[0, -1], [2, 1]])], axis=1)
    go("Gather", [f, np.int32(1)], axis=0)
    go("GatherElements", [f, ints(np.int64, 3, 2, 5, lo=-4, hi=3)], axis=1)
    go("GatherElements", [np.arange(300, dtype=np.float32).reshape(100, 3), np.int64([[-100, 99]])])
    go("GatherND", [f, np.int64([[0, -1], [2, 1]])])
    go("GatherND", [f, np.int64([[0], [2], [-1]])], batch_dims=1)
    go("ScatterND", [f, np.int64([[0, 1], [2, -1]]), floats(2, 5)])
    go("ScatterND", [np.round(f), np.int64([[0, 1], [2, -1], [0, 1]]), np.ones((3, 5), np.float32)], reduction="add")
    go("ScatterElements", [f, np.int64([[[0, 1, -1, 2, 3]]]), floats(1, 1, 5)], axis=1)
    go("TopK", [np.round(f), np.int64([3])], axis=-1, nout=2)
    go("TopK", [ints(np.int32, 3, 4), np.int64([2])], axis=0, largest=0, nout=2)
    for mode in ("constant", "reflect", "edge"):
        go("Pad", [f, np.int64([1, 0, 2, 1, 1, 0])], mode=mode)
    go("Pad", [f, np.int64([1, 0, 2, 1, 1, 0]), f4(3)])
    go("Pad", [f, np.int64([1, -1, -2, 1]) + 0, None, np.int64([1, 2])])
    go("Pad", [f], opset=2, pads=[0, 1, 0, 0, 1, 0], value=2.0)
    go("Expand", [floats(3, 1), np.int64([2, 1, 4])])
    go("Tile", [f, np.int64([1, 2, 3])])
    go("Shape", [f])
    go("Shape", [f], start=1)
    go("Size", [f])
    go("ConstantOfShape", [np.int64([2, 3])], value=helper.make_tensor("v", T.INT32, [1], [5]))
    go("Range", [np.int64(1), np.int64(10), np.int64(3)])
    go("Trilu", [f], upper=0)
    go("Trilu", [f, np.int64(1)])
    go("OneHot", [np.int64([0, 2, -1]), np.int64(3), f4([0, 5])], axis=0)
    go("DepthToSpace", [floats(1, 8, 2, 3)], blocksize=2)
    go("DepthToSpace", [floats(1, 8, 2, 3)], blocksize=2, mode="CRD")
    go("SpaceToDepth", [floats(1, 2, 4, 6)], blocksize=2)
    go("Einsum", [floats(2, 3, 4), floats(2, 4, 5)], equation="bij,bjk->bik", exact=False)
    for to in (T.INT8, T.UINT8, T.INT32, T.INT64, T.BOOL, T.FLOAT16, T.DOUBLE, T.INT16, T.UINT16, T.UINT32):
        go("Cast", [floats(50) * 50 if to not in (T.UINT8, T.UINT16, T.UINT32) else positive(50) * 50], to=to)
    for dt in (np.int32, np.int64, np.uint8):
        for to in (T.INT8, T.UINT8, T.INT32, T.INT64, T.FLOAT, T.BOOL, T.INT16, T.UINT16):
            go("Cast", [ints(dt, 50)], to=to)
    go("BitShift", [ints(np.uint8, 20), ints(np.uint8, 20, lo=0, hi=7)], direction="LEFT")
    go("BitShift", [ints(np.uint32, 20), ints(np.uint32, 20, lo=0, hi=31)], direction="RIGHT")
    go("BitwiseAnd", [ints(np.int32, 20), ints(np.int32, 20)])
    go("BitwiseNot", [ints(np.uint8, 20)])
    h16 = floats(40).astype(np.float16)
    go("Add", [h16, h16])
    go("Mul", [h16, h16])
    go("QuantizeLinear", [h16, np.float16(0.037), np.uint8(3)])
    go("DequantizeLinear", [ints(np.int8, 50), np.float16(0.037)])
    go("Mod", [f, f2], exact=False, fmod=1)
    go("Mean", [f, f2, f], exact=False)

    # What onnx.reference computes without operators of ours, and versions that it lacks.
    for mode in ("nearest", "linear", "cubic"):
        for coordinates in ("half_pixel", "align_corners", "asymmetric"):
            at = {"mode": mode, "coordinate_transformation_mode": coordinates}
            go("Resize", [floats(1, 2, 4, 5), None, f4([1, 1, 2, 3])], exact=False, tol=1e-5, **at)
            go("Resize", [floats(1, 2, 4, 5), None, None, np.int64([1, 2, 6, 3])], exact=False, tol=1e-5, **at)
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        weights = [floats(5, 2, 3), floats(2, gates * 4, 3), floats(2, gates * 4, 4), floats(2, gates * 8)]
        state = [None, floats(2, 2, 4), floats(2, 2, 4)][: 3 if op == "LSTM" else 2]
        nout = 3 if op == "LSTM" else 2
        go(op, [*weights, *state], exact=False, nout=nout, tol=1e-5, hidden_size=4, direction="bidirectional")
        go(op, [one[:1] if one.ndim == 3 and len(one) == 2 else one for one in weights[:3]], exact=False, hidden_size=4)
    for op in ("Mish", "Hardmax", "NonZero", "Det", "EyeLike", "Tan", "Sinh", "Atan", "LogSoftmax"):
        go(op, [floats(4, 4)], exact=False)
    go("LRN", [floats(2, 5, 3, 3)], exact=False, size=3)
    go("LpNormalization", [f], exact=False)
    go("Compress", [f, np.array([True, False, True])], axis=0)
    go("ReverseSequence", [f, np.int64([1, 3, 2, 3])], batch_axis=1, time_axis=0)
    go("GridSample", [floats(1, 2, 4, 5), np.clip(floats(1, 3, 3, 2), -1, 1)], exact=False, tol=1e-5)
    go("Unique", [ints(np.int64, 9, lo=0, hi=3)], nout=4)
    go("MaxPool", [floats(2, 3, 8, 9)], nout=2, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    go("MaxPool", [floats(2, 3, 8, 9)], nout=2, kernel_shape=[3, 2], storage_order=1, ceil_mode=1, strides=[2, 2])
    go("Upsample", [floats(1, 2, 4, 5), f4([1, 1, 2, 3])], opset=9)
    go("Shrink", [f], lambd=0.5, bias=0.25)
    go("MeanVarianceNormalization", [floats(2, 3, 4, 5)], exact=False, tol=1e-5)
    go("LpPool", [floats(2, 3, 6, 7)], exact=False, kernel_shape=[3, 2], strides=[1, 2], pads=[1, 0, 1, 1])
    go("Dropout", [f])
    for reduction in ("add", "mul", "max", "min"):
        index = np.int64([[[0, 1, 0, 2, 3], [0, 1, 0, 2, 3]]])
        go("ScatterElements", [f, index, floats(1, 2, 5)], exact=False, axis=1, reduction=reduction)
    for op in ("ReduceLogSum", "ReduceLogSumExp"):
        go(op, [f3, np.int64([1])], exact=False)
    rois, batches = f4([[0, 0, 3, 3], [1, 1, 4, 2]]), np.int64([0, 1])
    go(
        "RoiAlign",
        [floats(2, 2, 6, 6), rois, batches],
        exact=False,
        tol=1e-5,
        output_height=2,
        output_width=3,
        sampling_ratio=2,
    )
    boxes = np.sort(positive(1, 6, 2, 2), 2).reshape(1, 6, 4)
    go("NonMaxSuppression", [boxes, positive(1, 2, 6), np.int64([3]), f4([0.3])])
    for op in ("Acosh", "Asinh", "Cosh", "Acos", "Asin", "Atanh"):
        go(op, [1 + f3 if op == "Acosh" else f3 / (1 + f3.max())], exact=False)
    go("CastLike", [f, np.int32(1)])
    go("Identity", [f])
    go("BitwiseXor", [ints(np.int32, 20), ints(np.int32, 20)])
    go("Where", [f > 0, ints(np.int64, 3, 4, 5), ints(np.int64, 4, 5)])
    go("TopK", [f, np.int64([2])], axis=1, nout=2)
    go("Tile", [ints(np.int32, 2, 3), np.int64([2, 2])])
    go("GatherND", [ints(np.int64, 2, 3, 4), np.int64([[[0, 1]], [[1, 2]]])])
    go("Slice", [ints(np.int64, 9), np.int64([-3]), np.int64([-20]), np.int64([0]), np.int64([-2])])
    go("Softmax", [f], opset=11, exact=False)
    go("LogSoftmax", [f], opset=11, exact=False, axis=0)
    go(
        "ConvTranspose",
        [floats(1, 2, 3, 3), floats(2, 2, 3, 3)],
        exact=False,
        tol=1e-5,
        strides=[3, 2],
        output_shape=[10, 8],
    )
    go(
        "ConvTranspose",
        [floats(1, 2, 3, 3), floats(2, 2, 3, 3)],
        exact=False,
        tol=1e-5,
        strides=[2, 2],
        auto_pad="SAME_UPPER",
    )
    go("Sum", [f, f2, f])
    return found
