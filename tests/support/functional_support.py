"""Quantized arrays on which the arithmetic goes wrong, and the same in every framework."""

from qcore.affine import QArray, QParams


def operand(rng, form, shape, scale, zero_point=None):
    """A quantized array of all kinds of integers, the ends of the range included."""
    values = rng.integers(form.qmin, form.qmax + 1, shape)
    values.flat[:2] = form.qmin, form.qmax
    zero_point = rng.integers(form.qmin, form.qmax + 1) if zero_point is None else zero_point
    return QArray(values.astype(form.storage), QParams.of(scale, zero_point), form)


def in_torch(q):
    """The same as `qtorch.quantization.QTensor`."""
    import torch

    from qtorch.quantization import QTensor

    return QTensor(torch.from_numpy(q.values), params_in_torch(q.qparams), q.form)


def params_in_torch(qparams):
    from qtorch._affine.namespace import Names

    return QParams.of(qparams.scale, qparams.zero_point, qparams.axis, Names)


def in_jax(q):
    """The same as `qjax.quantization.QTensor`."""
    import jax.numpy as jnp

    from qjax.quantization import QTensor

    return QTensor(jnp.asarray(q.values), params_in_jax(q.qparams), q.form)


def params_in_jax(qparams):
    from qjax._namespace import Names

    return QParams.of(qparams.scale, qparams.zero_point, qparams.axis, Names)
