"""Dynamic quantization: activations are quantized by their own range in each call; and the recurrent cells.

Results are float32. Products are rounded before they are added; exponentials are computed in float64 and rounded once.
"""

from __future__ import annotations

from typing import Any

from qcore.affine import law
from qcore.affine.functional.activations import sigmoid_of, tanh_of
from qcore.affine.integers import AffineInteger
from qcore.affine.parameters import QParams, dynamic_qparams


def quantize_dynamic(xp: Any, x: Any, form: AffineInteger, rows: bool = False) -> tuple[Any, QParams]:
    """The int32 integers of a float32 array, with the parameters of its own range (`choose_qparams_dynamic`).

    With rows each row of a matrix has its own range and parameters. A NaN or an infinity makes the scale of its range
    one, so that every result of `dynamic_output` with it is NaN.
    """
    axis = 0 if rows else None
    with xp.arithmetic():
        low, high = xp.extremes(x, (1,) if rows else tuple(range(x.ndim)))
        qparams = dynamic_qparams(xp, low, high, form)
        finite = (low - low == 0) & (high - high == 0)  # inf - inf and NaN - NaN are NaN, which equals nothing
        scale = xp.where(finite, qparams.scale, xp.full_like(qparams.scale, float("nan"), "float32"))
        q = law.quantize(xp, x, scale, qparams.zero_point, axis, form)
        return q, QParams(scale, qparams.zero_point, axis)


def sums_of_rows(sums: Any, zero_points: Any, totals: Any) -> Any:
    """The sums of (q - zero point of the row) * w of rows of integers, from those of q * w: exact, in any integers.

    Products of integers have one zero point for all rows.

    Args:
        sums: of shape (rows, outputs).
        zero_points: of shape (rows,).
        totals: the sums of each output's w, of shape (outputs,).
    """
    return sums - zero_points.reshape((-1, 1)) * totals


def dynamic_output(xp: Any, sums: Any, input_scale: Any, weight_scale: Any, bias: Any) -> Any:
    """float32(sums) * (input_scale * weight_scale) + bias, each operation rounded; outputs lie along the last axis.

    There is one input scale, or one for each row of a matrix of sums.
    """
    with xp.arithmetic():
        scale = law.without_subnormals(xp, law.along(input_scale, 0, sums.ndim) * weight_scale)
        y = xp.rounded(xp.astype(sums, "float32") * scale)
        return y if bias is None else y + bias


def lstm_cell(xp: Any, gates: Any, cell: Any) -> tuple[Any, Any]:
    """The hidden and the cell state after a step: c = f * c + i * g, h = o * tanh(c).

    Args:
        xp: the array namespace.
        gates: float32 of shape (..., 4 * size): i, f, g, o before their functions.
        cell: float32 of shape (..., size).
    """
    size = cell.shape[-1]
    i, f, g, o = (gates[..., number * size : (number + 1) * size] for number in range(4))
    return lstm_step(xp, i, f, g, o, cell)


def lstm_step(xp: Any, i: Any, f: Any, g: Any, o: Any, cell: Any) -> tuple[Any, Any]:
    """`lstm_cell` of the four gates apart."""
    with xp.arithmetic():
        i, f, o = (sigmoid_of(xp, gate) for gate in (i, f, o))
        # Each product is rounded by itself: contracted with the sum, it would have other bits in each compiler.
        cell = xp.rounded(f * cell) + xp.rounded(i * tanh_of(xp, g))
        return xp.rounded(o * tanh_of(xp, cell)), cell


def gru_cell(xp: Any, of_input: Any, of_hidden: Any, hidden: Any) -> Any:
    """The hidden state after a step: n = tanh(xn + r * hn), h = (h - n) * z + n.

    Args:
        xp: the array namespace.
        of_input, of_hidden: float32 of shape (..., 3 * size): r, z, n before their functions.
        hidden: float32 of shape (..., size).
    """
    size = hidden.shape[-1]
    cuts = [(..., slice(number * size, (number + 1) * size)) for number in range(3)]
    return gru_step(xp, [of_input[cut] for cut in cuts], [of_hidden[cut] for cut in cuts], hidden)


def gru_step(xp: Any, of_input: Any, of_hidden: Any, hidden: Any) -> Any:
    """`gru_cell` of the three parts of each product apart."""
    (xr, xz, xn), (hr, hz, hn) = of_input, of_hidden
    with xp.arithmetic():
        r, z = sigmoid_of(xp, xr + hr), sigmoid_of(xp, xz + hz)
        n = tanh_of(xp, xn + xp.rounded(r * hn))
        return xp.rounded((hidden - n) * z) + n


def rnn_cell(xp: Any, sums: Any, nonlinearity: str) -> Any:
    """tanh of sums, or max(sums, 0) where nonlinearity is "relu"."""
    with xp.arithmetic():
        return (
            tanh_of(xp, sums) if nonlinearity == "tanh" else xp.where(sums < 0, xp.full_like(sums, 0, "float32"), sums)
        )
