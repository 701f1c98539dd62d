"""Writes tests/peers/integer_vectors.npz: what the x86 engine of torch 2.13 makes of quantized tensors.

torch will lose its engines; run this on a version that has them: `python tests/support/record_integer.py`.
"""

import warnings
from pathlib import Path

import numpy as np
import torch

FILE = Path(__file__).parent.parent / "peers" / "integer_vectors.npz"
# Scale and zero point of two operands and of the result. Half of all are such that many results are ties.
CASES = [
    ((0.03, 121), (0.021, 7), (0.05, 100)),
    ((0.75, 3), (0.5, 131), (1.5, 11)),
    ((3 / 64, 255), (1 / 32, 0), (3 / 32, 77)),
    ((0.0117, 64), (0.3, 65), (0.2, 1)),
]


def tensor(values, scale, zero_point):
    return torch._make_per_tensor_quantized_tensor(torch.from_numpy(values), float(np.float32(scale)), zero_point)


def results(a, b, rows, weight, scales, bias, w, scale, zero_point):
    """Each operation and its result; with 64 channels means of images in channels_last have one law in torch."""
    ops, functional, output = torch.ops.quantized, torch.nn.functional, (float(np.float32(scale)), zero_point)
    filters = torch._make_per_channel_quantized_tensor(weight, scales.double(), torch.zeros(len(weight)).long(), 0)
    packed = ops.linear_prepack(filters, bias)
    last = a.contiguous(memory_format=torch.channels_last)
    yield from {
        "linear": ops.linear(rows, packed, *output),
        "linear_relu": ops.linear_relu(rows, packed, *output),
        "add": ops.add(a, b, *output),
        "add_relu": ops.add_relu(a, b, *output),
        "mul": ops.mul(a, b, *output),
        "cat": ops.cat([a, b], 1, *output),
        "add_scalar": ops.add_scalar(a, 0.7),
        "mul_scalar": ops.mul_scalar(a, -0.7),
        "relu6": functional.relu6(a),
        "hardtanh": functional.hardtanh(a, -0.7, 1.3),
        "max_pool": functional.max_pool2d(a, 3, 2, 1, 1, True),
        "avg_pool": functional.avg_pool2d(last, 2, 2, 1),
        "adaptive": functional.adaptive_avg_pool2d(a, (2, 1)),
        "mean": a.mean((2, 3)),
        "nearest": functional.interpolate(a, (7, 5)),
        "bilinear": functional.interpolate(a, (7, 5), mode="bilinear"),
        "elu": torch.ao.nn.quantized.functional.elu(a, *output, 0.7),
        "leaky_relu": ops.leaky_relu(a, 0.1, False, *output),
        "hardswish": ops.hardswish(a, *output),
        "hardsigmoid": functional.hardsigmoid(a),
        "sigmoid": torch.sigmoid(a),
        "tanh": torch.tanh(a),
        "batch_norm": ops.batch_norm2d(a, w[0], w[1], w[2], w[3], 1e-5, *output),
        "group_norm": ops.group_norm(a, 4, w[0], w[1], 1e-5, *output),
    }.items()


def record():
    torch.backends.quantized.engine = "x86"
    rng, arrays = np.random.default_rng(13), {}
    for number, ((sa, za), (sb, zb), output) in enumerate(CASES):
        given = {name: rng.integers(0, 256, (1, 64, 4, 3)).astype(np.uint8) for name in "ab"}
        given["rows"] = rng.integers(0, 256, (20, 32)).astype(np.uint8)
        given["weight"] = rng.integers(-127, 128, (10, 32)).astype(np.int8)
        given["scales"] = np.float32(sb * 2.0 ** rng.integers(-7, -3, 10))
        given["bias"] = rng.normal(size=10).astype(np.float32)
        given["w"] = (rng.normal(size=(4, 64)) ** [[1], [1], [1], [2]] + [[0], [0], [0], [0.1]]).astype(np.float32)
        operands = [tensor(given["a"], sa, za), tensor(given["b"], sb, zb), tensor(given["rows"], sa, za)]
        floats = [torch.from_numpy(given[name]) for name in ("weight", "scales", "bias", "w")]
        found = {name: result.int_repr().numpy() for name, result in results(*operands, *floats, *output)}
        arrays |= {f"{number}.{name}": array for name, array in (given | found).items()}
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record()
