"""What users call of embedding, pooling, dropout and parts of tensors, the same in all packages."""

from __future__ import annotations

from typing import Any

from qcore.arguments import check_flag, check_int, quoted
from qcore.reproducible.reductions import check_axis
from qcore.reproducible.training.dropout import DROPOUT
from qcore.reproducible.training.embedding import EMBEDDING
from qcore.reproducible.training.moving import Moving
from qcore.reproducible.training.parts import CHUNK, NARROW, SETTLE
from qcore.reproducible.training.pooling import AVG_POOL, MAX_POOL, window_padding

Pair = tuple[int, int]


class TrainingFunctions(Moving):
    """`Moving`, and what models need besides it."""

    def key_words(self, key: Any) -> Any:
        """A key as an int32 array of two words."""
        raise NotImplementedError

    def settle(self, x: Any) -> Any:
        """x with zeros in the place of numbers of magnitude at most 2^-126, and so is its gradient.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> reproducible.settle(torch.tensor([1.0, 2.0**-126, 2.0**-125]))  # the second one is too small
            tensor([1.0000e+00, 0.0000e+00, 2.3510e-38])
        """
        return self.call(SETTLE, self.float32("x", x))

    def chunk(self, x: Any, chunks: int, axis: int = -1) -> tuple[Any, ...]:
        """Equal parts along an axis.

        Args:
            x: float32 array.
            chunks: how many; it divides the length of the axis.
            axis: the axis.

        Returns:
            A tuple of float32 arrays of x's shape, but of its length / chunks along the axis.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> reproducible.chunk(torch.tensor([1.0, 2.0, 3.0, 4.0]), 2)
            (tensor([1., 2.]), tensor([3., 4.]))
        """
        x, chunks = self.float32("x", x), check_int("chunks", chunks, 1)
        axis = check_axis(axis, x)
        if x.shape[axis] % chunks:
            raise ValueError(f"chunks={chunks}; allowed are divisors of the length {x.shape[axis]}")
        return self.call(CHUNK, x, chunks=chunks, axis=axis)

    def narrow(self, x: Any, axis: int, start: int, length: int) -> Any:
        """A part along an axis; the gradient of what is left out is +0.

        Args:
            x: float32 array.
            axis: the axis.
            start: where the part begins.
            length: of the part.

        Returns:
            A float32 array of x's shape, but of this length along the axis.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> reproducible.narrow(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0, 1, 2)
            tensor([2., 3.])
        """
        x, start, length = self.float32("x", x), check_int("start", start, 0), check_int("length", length, 0)
        axis = check_axis(axis, x)
        rest = x.shape[axis] - start - length
        if rest < 0:
            raise ValueError(f"start={start} and length={length}; allowed are parts of the length {x.shape[axis]}")
        return self.call(NARROW, x, axis=axis, start=start, length=length, rest=rest)

    def embedding(self, indices: Any, weight: Any, padding_idx: int | None = None) -> Any:
        """Rows of a table. The gradient of a row is the sum over its uses: float64, pairs of neighbours, rounded once.

        Args:
            indices: array of integers from 0 to rows - 1; others give rows of NaN.
            weight: float32 array of shape (rows, width), with at least one row.
            padding_idx: the row that has no gradient, from -rows to rows - 1; or None.

        Returns:
            A float32 array of shape (*indices.shape, width).

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> reproducible.embedding(torch.tensor([1, 0, 1]), torch.tensor([[10.0], [20.0]])).tolist()
            [[20.0], [10.0], [20.0]]
        """
        weight, indices = self.float32("weight", weight), self.integers("indices", indices)
        if weight.ndim != 2 or weight.shape[0] == 0:
            raise ValueError(f"weight has shape {tuple(weight.shape)}; allowed is (rows, width), at least one row")
        rows = weight.shape[0]
        if padding_idx is None:
            return self.call(EMBEDDING, weight, indices)
        row = check_int("padding_idx", padding_idx, -rows, rows - 1) % rows
        return self.call(EMBEDDING, weight, indices, padding=row)

    def dropout(self, x: Any, rate: float, key: Any) -> Any:
        """x times 1 / (1 - rate) where the leading 24 bits of an element's random word are at least the rate, else +0.

        1 / (1 - rate) is rounded to float32, and so is its product with x.

        Args:
            x: float32 array.
            rate: the probability of a zero, at least 0 and below 1.
            key: of the random words, as for `quantize`.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> reproducible.dropout(torch.ones(6), 0.5, key=0).tolist()
            [2.0, 2.0, 0.0, 0.0, 2.0, 0.0]
        """
        if not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise ValueError(f"rate={quoted(rate)}; allowed are numbers from 0 to below 1")
        return self.call(DROPOUT, self.float32("x", x), self.key_words(key), rate=float(rate))

    def max_pool2d(
        self,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        """The largest number of each window; its gradient goes to the first place that has it.

        Args:
            x: float32 array of shape (..., height, width).
            kernel_size: the window's size, an int or a pair.
            stride: the distance of windows; None is kernel_size.
            padding: how many numbers are missing on both sides, at most half of kernel_size.
            dilation: the distance of a window's numbers.
            ceil_mode: True for windows that begin in the array, or in the padding before it, and end behind it.

        Returns:
            A float32 array of shape (..., windows down, windows across).

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> reproducible.max_pool2d(torch.arange(8.0).reshape(2, 4), 2).tolist()
            [[5.0, 7.0]]
        """
        kernel, step, pads, space = _windows(kernel_size, stride, padding, dilation)
        x, widths = self._window_padding(x, kernel, step, pads, space, ceil_mode)
        return self.call(MAX_POOL, x, kernel=kernel, stride=step, widths=widths, dilation=space)

    def avg_pool2d(
        self,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Any:
        """The mean of each window: the float64 sum of its numbers, row by row, rounded, over their count.

        Args:
            x: float32 array of shape (..., height, width).
            kernel_size, stride, padding, ceil_mode: as for `max_pool2d`.
            count_include_pad: True if zeros of the padding count as numbers; those that ceil_mode adds never do.

        Returns:
            A float32 array of shape (..., windows down, windows across).

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import torch
            >>> from qtorch import reproducible
            >>> reproducible.avg_pool2d(torch.arange(8.0).reshape(2, 4), 2).tolist()
            [[2.5, 4.5]]
        """
        check_flag("count_include_pad", count_include_pad)
        kernel, step, pads, space = _windows(kernel_size, stride, padding, 1)
        x, widths = self._window_padding(x, kernel, step, pads, space, ceil_mode)
        counted = tuple([(pad, pad) if count_include_pad else (0, 0) for pad in pads])
        return self.call(AVG_POOL, x, kernel=kernel, stride=step, widths=widths, counted=counted)

    def _window_padding(
        self, x: Any, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool
    ) -> tuple[Any, Any]:
        """The array, and its padding before and after each of the last two axes."""
        x = self.float32("x", x)
        check_flag("ceil_mode", ceil_mode)
        axes = list(zip(x.shape[-2:], kernel, stride, padding, dilation, strict=True)) if x.ndim >= 2 else []
        if not axes or any(
            length + 2 * pad < space * (size - 1) + 1 or 2 * pad > size for length, size, _, pad, space in axes
        ):
            raise ValueError(
                f"x has shape {tuple(x.shape)} with kernel_size={kernel}, padding={padding}, dilation={dilation}; "
                "allowed are windows within (..., height, width), and padding up to half of them"
            )
        return x, tuple([(axis[3], window_padding(*axis, ceil_mode)) for axis in axes])


def _windows(kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> tuple[Pair, Pair, Pair, Pair]:
    """The sizes of a window along two axes."""
    kernel = _pair("kernel_size", kernel_size, 1)
    step = kernel if stride is None else _pair("stride", stride, 1)
    return kernel, step, _pair("padding", padding, 0), _pair("dilation", dilation, 1)


def _pair(name: str, value: Any, low: int) -> Pair:
    values = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(values) != 2:
        raise ValueError(f"{name}={quoted(value)}; allowed are an int and two ints")
    return check_int(name, values[0], low), check_int(name, values[1], low)
