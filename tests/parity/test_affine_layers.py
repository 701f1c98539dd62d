"""Activations, pools, norms and recurrent cells on quantized arrays: the same bits in NumPy, PyTorch and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import some
from functional_support import in_jax, in_torch, operand, params_in_jax, params_in_torch
from support import assert_same_bits

from qcore.affine import INT8, UINT8, AffineInteger, Names, QParams
from qcore.affine import functional as law
from qcore.affine.functional import recurrent
from qjax._namespace import Names as JaxNames
from qtorch._affine.namespace import Names as TorchNames

FORMS = [UINT8, INT8, AffineInteger.of_width(3), AffineInteger.of_width(16, False)]


def activations(q, output):
    return {
        "elu": law.elu(q, output, alpha=0.7),
        "celu": law.celu(q, output, alpha=1.3),
        "leaky_relu": law.leaky_relu(q, output, UINT8, 0.01),
        "hardswish": law.hardswish(q, output),
        "prelu": law.prelu(q, q[0, 0, 0, :6].reshape(6), output),
        "prelu of the last axis": law.prelu(q, q[0, 0, 0], output, UINT8, -1),
        "hardsigmoid": law.hardsigmoid(q),
        "sigmoid": law.sigmoid(q),
        "sigmoid with parameters": law.sigmoid(q, output, UINT8),
        "tanh": law.tanh(q),
        "softmax": law.softmax(q, 1),
        "softmax with parameters": law.softmax(q, -1, output, UINT8),
    }


def pools(q, _):
    return {
        "max": law.max_pool(q, 2, (3, 2), 2, 1, (1, 2), True),
        "max without a batch": law.max_pool(q.reshape(12, 9, 7), 2, 2),
        "max along one": law.max_pool(q.reshape(2, 6, 63), 1, 3, 4, 1),
        "avg": law.avg_pool(q, 2, 2),
        "avg of padding": law.avg_pool(q, 2, (4, 2), (3, 1), (2, 1), True, True),
        "avg without padding": law.avg_pool(q, 2, 4, 3, 2, True, False),
        "avg by another count": law.avg_pool(q, 2, 2, 1, 0, False, True, 3),
        "avg of volumes": law.avg_pool(q.reshape(2, 2, 3, 9, 7), 3, 2),
        "adaptive": law.adaptive_avg_pool(q, (4, None)),
        "adaptive to one": law.adaptive_avg_pool(q, 1),
        "mean": law.mean(q, (2, -1)),
        "mean with dimensions": law.mean(q, (1,), True),
        "nearest": law.interpolate(q, (13, 5)),
        "nearest by a factor": law.interpolate(q, scale_factor=1.7),
        "bilinear": law.interpolate(q, (13, 20), mode="bilinear"),
        "bilinear by a factor": law.interpolate(q, scale_factor=(0.6, 2), mode="bilinear"),
        "bilinear with corners": law.interpolate(q, (13, 1), mode="bilinear", align_corners=True),
    }


def norms(q, output, w, b, m, v):
    return {
        "layer": law.layer_norm(q, (9, 7), None, None, 1e-5, output),
        "layer with weights": law.layer_norm(q, 7, w, b, 1e-3, output, UINT8),
        "group": law.group_norm(q, 3, w[:6], b[:6], 1e-5, output),
        "instance": law.group_norm(q, 6, None, None, 1e-5, output),
        "batch": law.batch_norm(q, w[:6], b[:6], m[:6], v[:6], 1e-5, output),
        "batch with relu": law.batch_norm(q, None, None, m[:6], v[:6], 1e-5, output, UINT8, True),
    }


def same_all(actual, expected):
    assert actual.keys() == expected.keys()
    for name, result in expected.items():
        assert_same_bits(np.asarray(actual[name].values), result.values, name)
        assert_same_bits(np.asarray(actual[name].qparams.scale), np.asarray(result.qparams.scale), name)
        assert (actual[name].form, actual[name].values.shape) == (result.form, result.values.shape)


def arguments(form, seed):
    rng = np.random.default_rng(seed)
    scale = np.float32(6 / (form.qmax - form.qmin))
    q = operand(rng, form, (2, 6, 9, 7), scale, (form.qmin + form.qmax) // 2 + seed)
    zero = min((form.qmin + form.qmax) // 2, 127)
    weights = rng.normal(size=(4, 7)).astype(np.float32)
    return q, QParams.of(scale, max(0, zero)), [*weights[:3], abs(weights[3])]


@some((0, 0), (1, 0), (2, 0), functions=[activations, pools, norms], form=FORMS)
def test_frameworks(functions, form):
    for seed in (0, 1) if form is FORMS[0] else (0,):  # the second one has other numbers, and no other program
        q, output, weights = arguments(form, seed)
        weights = weights if functions is norms else []
        expected = functions(q, output, *weights)
        same_all(functions(in_torch(q), params_in_torch(output), *map(torch.from_numpy, weights)), expected)
        same_all(jax.jit(functions)(in_jax(q), params_in_jax(output), *map(jnp.asarray, weights)), expected)


@pytest.mark.heavy
@pytest.mark.parametrize("functions", [activations, pools, norms])
def test_compiled_by_torch(functions):
    """Traced into one program; Inductor compiles the activations, whose functions differ between libraries."""
    q, output, weights = arguments(UINT8, 0)
    weights = map(torch.from_numpy, weights if functions is norms else [])
    everything = in_torch(q), params_in_torch(output), *weights
    backend = "inductor" if functions is activations else "aot_eager"
    same_all(torch.compile(functions, fullgraph=True, backend=backend)(*everything), functions(*everything))


def cells(xp, x, h, c, scale, bias):
    q, qparams = recurrent.quantize_dynamic(xp, x, AffineInteger(0, 127))
    gates = recurrent.dynamic_output(xp, q, qparams.scale, scale, bias)
    hidden, cell = recurrent.lstm_cell(xp, gates, c)
    gru = recurrent.gru_cell(xp, gates[..., :15], gates[..., 5:], h)
    rnn = [recurrent.rnn_cell(xp, gates, kind) for kind in ("tanh", "relu")]
    return [q, qparams.scale, qparams.zero_point, gates, hidden, cell, gru, *rnn]


def test_recurrent_cells():
    rng = np.random.default_rng(5)
    x, h, c = (rng.normal(size=(3000, size)).astype(np.float32) for size in (20, 5, 5))
    scale, bias = rng.uniform(0.01, 0.1, 20).astype(np.float32), rng.normal(size=20).astype(np.float32)
    given = x, h, c, scale, bias
    expected = cells(Names, *given)
    for actual in (
        cells(TorchNames, *map(torch.from_numpy, given)),
        jax.jit(lambda *given: cells(JaxNames, *given))(*map(jnp.asarray, given)),
    ):
        for own, reference in zip(actual, expected, strict=True):
            assert_same_bits(np.asarray(own), reference)
    compiled = torch.compile(lambda *given: cells(TorchNames, *given), fullgraph=True, backend="aot_eager")
    for own, reference in zip(compiled(*map(torch.from_numpy, given)), expected, strict=True):
        assert_same_bits(own.numpy(), reference)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_dynamic_results_of_what_is_not_finite_are_nan(number):
    x = np.float32([[1, 2], [number, 3]])
    q, qparams = recurrent.quantize_dynamic(Names, x, UINT8)
    assert np.isnan(recurrent.dynamic_output(Names, q, qparams.scale, np.float32(1), None)).all()
