"""The integer arithmetic beside recorded results of torch 2.13's x86 engine: equal where its law is the same."""

import numpy as np
import pytest
import torch
from record_integer import CASES, FILE

from qcore.affine import INT8, UINT8, QArray, QParams
from qcore.affine import functional as law
from qtorch.nn.quantized import functional
from qtorch.quantization import QTensor

# Operations in which torch fuses, or rounds with the zero point inside: they differ by 1 step, in so many of 1,000.
WITHIN_A_STEP = {"add": 60, "add_relu": 60, "cat": 200, "add_scalar": 10, "elu": 40, "leaky_relu": 60, "hardswish": 20}
WITHIN_A_STEP |= {"group_norm": 1, "bilinear": 5}


def linear(given, q, output, relu=False):
    """By qtorch, which has the sums; the law of what becomes of them is qcore's."""
    params = [QParams(torch.from_numpy(s), torch.from_numpy(z), axis) for s, z, axis in given["parameters"]]
    x = QTensor(torch.from_numpy(given["rows"]), params[0], UINT8)
    w = QTensor(torch.from_numpy(given["weight"]), params[1], INT8)
    y = functional.linear(x, w, torch.from_numpy(given["bias"]), float(output.scale), int(output.zero_point))
    return y.relu() if relu else y


OPERATIONS = {
    "linear": lambda given, a, b, output: linear(given, a, output),
    "linear_relu": lambda given, a, b, output: linear(given, a, output, True),
    "add": lambda given, a, b, output: law.add(a, b, output),
    "add_relu": lambda given, a, b, output: law.add(a, b, output, relu=True),
    "mul": lambda given, a, b, output: law.mul(a, b, output),
    "cat": lambda given, a, b, output: law.cat([a, b], 1, output),
    "add_scalar": lambda given, a, b, output: law.add_scalar(a, 0.7),
    "mul_scalar": lambda given, a, b, output: law.mul_scalar(a, -0.7),
    "relu6": lambda given, a, b, output: law.clamp(a, 0, 6),
    "hardtanh": lambda given, a, b, output: law.clamp(a, -0.7, 1.3),
    "max_pool": lambda given, a, b, output: law.max_pool(a, 2, 3, 2, 1, 1, True),
    "avg_pool": lambda given, a, b, output: law.avg_pool(a, 2, 2, 2, 1),
    "adaptive": lambda given, a, b, output: law.adaptive_avg_pool(a, (2, 1)),
    "mean": lambda given, a, b, output: law.mean(a, (2, 3)),
    "nearest": lambda given, a, b, output: law.interpolate(a, (7, 5)),
    "bilinear": lambda given, a, b, output: law.interpolate(a, (7, 5), mode="bilinear"),
    "elu": lambda given, a, b, output: law.elu(a, output, alpha=0.7),
    "leaky_relu": lambda given, a, b, output: law.leaky_relu(a, output, slope=0.1),
    "hardswish": lambda given, a, b, output: law.hardswish(a, output),
    "hardsigmoid": lambda given, a, b, output: law.hardsigmoid(a),
    "sigmoid": lambda given, a, b, output: law.sigmoid(a),
    "tanh": lambda given, a, b, output: law.tanh(a),
    "batch_norm": lambda given, a, b, output: law.batch_norm(a, *given["w"], 1e-5, output),
    "group_norm": lambda given, a, b, output: law.group_norm(a, 4, *given["w"][:2], 1e-5, output),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_recorded(name):
    differing = total = 0
    with np.load(FILE) as recorded:
        for number, ((sa, za), (sb, zb), output) in enumerate(CASES):
            given = {key: recorded[f"{number}.{key}"] for key in ("a", "b", "rows", "weight", "scales", "bias", "w")}
            a, b = (QArray(given[key], QParams.of(*one), UINT8) for key, one in (("a", (sa, za)), ("b", (sb, zb))))
            zeros = np.zeros(10, np.int32)
            given["parameters"] = [
                (np.array(sa, np.float32), np.array(za, np.int32), None),
                (given["scales"], zeros, 0),
            ]
            actual = np.asarray(OPERATIONS[name](given, a, b, QParams.of(*output)).values)
            steps = np.abs(actual.astype(int) - recorded[f"{number}.{name}"])
            assert steps.max() <= (name in WITHIN_A_STEP)
            differing, total = differing + (steps > 0).sum(), total + steps.size
    assert differing * 1000 <= WITHIN_A_STEP.get(name, 0) * total, f"{differing} of {total} differ"
