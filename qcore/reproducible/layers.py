"""What users call of layers and losses, the same in all packages."""

from __future__ import annotations

from math import prod
from typing import Any

from qcore.arguments import check_float, check_int, quoted
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.functions import Functions
from qcore.reproducible.norms import BATCH_NORM, LAYER_NORM, MOVING_AVERAGE, NORMALIZE
from qcore.reproducible.reductions import check_axes, check_axis, check_numbers
from qcore.reproducible.softmax import CROSS_ENTROPY, LOG_SOFTMAX, MSE, SOFTMAX
from qcore.reproducible.sums import check_broadcast


class Layers(Functions):
    """`Functions`, softmax, norms and losses."""

    def integers(self, name: str, x: Any) -> Any:
        """An array of integers as the package has it; a TypeError that names the argument if x is none."""
        raise NotImplementedError

    def softmax(self, x: Any, axis: int = -1) -> Any:
        """exp(x - max) / sum along an axis, each step rounded to float32.

        Args:
            x: float32 array.
            axis: the axis.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above, or there are no numbers along the axis.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.softmax(np.float32([0, 0, -np.inf])).tolist()
            [0.5, 0.5, 0.0]
        """
        return self._along(SOFTMAX, x, axis)

    def log_softmax(self, x: Any, axis: int = -1) -> Any:
        """x - max - log(sum(exp(x - max))) along an axis.

        Args:
            x: float32 array.
            axis: the axis.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above, or there are no numbers along the axis.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.log_softmax(np.float32([0, -np.inf])).tolist()
            [0.0, -inf]
        """
        return self._along(LOG_SOFTMAX, x, axis)

    def cross_entropy(self, x: Any, target: Any, axis: int = -1) -> Any:
        """The mean of -log_softmax(x) at the target classes; the target -100 does not count.

        NaN if none counts, or one is no class; the logits of such a target have NaN gradients.

        Args:
            x: float32 array of logits.
            target: array of integers, of x's shape without the axis.
            axis: the axis of classes.

        Returns:
            A float32 array without dimensions.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> logits, target = np.float32([[0, -200], [0, -200], [9, 9]]), np.array([0, 1, -100])
            >>> float(reproducible.cross_entropy(logits, target))  # the mean of 0 and 200
            100.0
        """
        x, target = self.float32("x", x), self.integers("target", target)
        axis = check_axis(axis, x)
        check_numbers(x, (axis,))
        if tuple(target.shape) != (wanted := tuple(x.shape[:axis] + x.shape[axis + 1 :])):
            raise ValueError(f"target has shape {tuple(target.shape)}; allowed is {wanted}")
        return self.call(CROSS_ENTROPY, x, target, axis=axis)

    def mse(self, x: Any, target: Any) -> Any:
        """The mean of the exact squares of x - target, for float32 arrays of one shape.

        Args:
            x, target: float32 arrays of one shape.

        Returns:
            A float32 array without dimensions.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> float(reproducible.mse(np.float32([1, 2]), np.float32([1, 4])))
            2.0
        """
        x = self.float32("x", x)
        return self.call(MSE, x, self._of_shape("target", target, tuple(x.shape)))

    def layer_norm(self, x: Any, weight: Any = None, bias: Any = None, axis: Any = -1, eps: float = 1e-5) -> Any:
        """(x - mean) / sqrt(variance + eps) * weight + bias along axes, each step rounded to float32.

        Args:
            x: float32 array.
            weight, bias: float32 arrays of the sizes along the axes, which are the last ones; or None.
            axis: one or several.
            eps: added to the variance, at least 0.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.layer_norm(np.float32([1, 2, 3]), eps=0.0).tolist()
            [-1.2247447967529297, 0.0, 1.2247447967529297]
        """
        return self._layer_norm(x, weight, bias, axis, eps, True)

    def rms_norm(self, x: Any, weight: Any = None, axis: Any = -1, eps: float = 1e-5) -> Any:
        """x / sqrt(mean(x^2) + eps) * weight along axes, each step rounded to float32.

        Args:
            x: float32 array.
            weight: float32 array of the sizes along the axes, which are the last ones; or None.
            axis: one or several.
            eps: added to the mean of the squares, at least 0.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.rms_norm(np.float32([1, 7]), eps=0.0).tolist()  # the root of (1 + 49) / 2 is 5
            [0.20000000298023224, 1.399999976158142]
        """
        return self._layer_norm(x, weight, None, axis, eps, False)

    def group_norm(self, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        """`layer_norm` of each group of channels, times weight (`multiply`) plus bias (`add`) of each channel.

        With as many groups as channels it is instance norm.

        Args:
            x: float32 array of shape (batch, channels, ...).
            groups: how many; it divides the number of channels.
            weight, bias: float32 arrays of shape (channels,), or None.
            eps: added to the variance, at least 0.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.group_norm(np.float32([[1, 3, 5, 9]]), 2, eps=0.0).tolist()
            [[-1.0, 1.0, -1.0, 1.0]]
        """
        x = self._with_channels(x)
        groups, channels = check_int("groups", groups, 1), x.shape[1]
        if channels % groups:
            raise ValueError(f"groups={groups}; allowed are divisors of the {channels} channels")
        weight, bias = self._parameters(weight, bias, (channels,))
        shape, beside = tuple(x.shape), (-1, *(1,) * (x.ndim - 2))
        y = self.layer_norm(x.reshape((shape[0], groups, prod(shape[1:]) // groups)), eps=eps).reshape(shape)
        y = y if weight is None else self.multiply(y, weight.reshape(beside))
        return y if bias is None else self.add(y, bias.reshape(beside))

    def _along(self, law: Differentiable, x: Any, axis: int) -> Any:
        x = self.float32("x", x)
        axis = check_axis(axis, x)
        check_numbers(x, (axis,))
        return self.call(law, x, axis=axis)

    def _layer_norm(self, x: Any, weight: Any, bias: Any, axis: Any, eps: float, centred: bool) -> Any:
        x = self.float32("x", x)
        axes = check_axes("axis", axis, x.ndim)
        if axes != tuple(range(x.ndim - len(axes), x.ndim)):
            raise ValueError(f"axis={quoted(axis)}; allowed are the last axes")
        weight, bias = self._parameters(weight, bias, tuple(x.shape[x.ndim - len(axes) :]))
        return self.call(LAYER_NORM, x, weight, bias, axes=axes, eps=check_float("eps", eps), centred=centred)

    def batch_norm(self, x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> tuple[Any, Any, Any]:
        """`layer_norm` of each channel over all axes but the second; also returns means and unbiased variances.

        Args:
            x: float32 array of shape (batch, channels, ...).
            weight, bias: float32 arrays of shape (channels,), or None.
            eps: added to the (biased) variance, at least 0.

        Returns:
            The normalized array, and the means and unbiased variances of shape (channels,).

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> y, mean, variance = reproducible.batch_norm(np.float32([[1], [3]]), eps=0.0)
            >>> y.tolist(), mean.tolist(), variance.tolist()
            ([[-1.0], [1.0]], [2.0], [2.0])
        """
        x = self._with_channels(x)
        weight, bias = self._parameters(weight, bias, (x.shape[1],))
        return self.call(BATCH_NORM, x, weight, bias, eps=check_float("eps", eps))

    def normalize(
        self, x: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Any:
        """`batch_norm` with given means and variances, which have no gradients.

        Args:
            x: float32 array of shape (batch, channels, ...).
            mean, variance, weight, bias: float32 arrays of shape (channels,); the last two may be None.
            eps: added to the variance, at least 0.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.normalize(np.float32([[5]]), np.float32([1]), np.float32([4]), eps=0.0).tolist()
            [[2.0]]
        """
        x = self._with_channels(x)
        shape = (x.shape[1],)
        mean, variance = self._of_shape("mean", mean, shape), self._of_shape("variance", variance, shape)
        weight, bias = self._parameters(weight, bias, shape)
        return self.call(NORMALIZE, x, mean, variance, weight, bias, eps=check_float("eps", eps))

    def moving_average(self, old: Any, new: Any, momentum: float) -> Any:
        """(1 - momentum) * old + momentum * new; it has no gradients.

        Args:
            old, new: float32 arrays that broadcast.
            momentum: the part of the new numbers, from 0 to 1.

        Returns:
            A float32 array of the shape that both broadcast to.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> float(reproducible.moving_average(np.float32(1), np.float32(3), 0.25))
            1.5
        """
        old, new = self.float32("old", old), self.float32("new", new)
        check_broadcast("old", old.shape, "new", new.shape)
        momentum = check_float("momentum", momentum, "a number from 0 to 1", lambda number: 0 <= number <= 1)
        return self.call(MOVING_AVERAGE, old, new, momentum=momentum)

    def _with_channels(self, x: Any) -> Any:
        x = self.float32("x", x)
        if x.ndim < 2:
            raise ValueError(f"x has shape {tuple(x.shape)}; allowed is (batch, channels, ...)")
        return x

    def _parameters(self, weight: Any, bias: Any, shape: tuple[int, ...]) -> list[Any]:
        given = {"weight": weight, "bias": bias}
        return [x if x is None else self._of_shape(name, x, shape) for name, x in given.items()]
