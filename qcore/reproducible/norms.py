"""Softmax, losses and norms: laws of layers that are made of sums."""

from __future__ import annotations

from math import nan, prod
from typing import Any

from qcore.arguments import check_broadcast, check_float, check_int, quoted
from qcore.binding import public
from qcore.reproducible.binding import Axes, check_axes, check_axis, check_numbers
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.operations import dot, squeezed, total
from qcore.reproducible.reductions import ReductionFunctions, exp, log, mean, size

IGNORED = -100  # examples with this target are left out of the mean, as in torch


def _softmax(xp: Any, x: Any, axis: int) -> tuple[Any, tuple[Any]]:
    y = xp.softmax(x, axis)
    return y, (y,)


def _of_softmax(xp: Any, saved: tuple[Any], gradient: Any, axis: int) -> tuple[Any]:
    (y,) = saved
    return (xp.mul(y, xp.sub(gradient, dot(xp, y, gradient, (axis,)))),)


def log_softmax(xp: Any, x: Any, axis: int) -> tuple[Any, tuple[Any]]:
    """x - max - log(sum), and the arrays that its gradient reads."""
    shifted = xp.sub(x, xp.greatest(x, (axis,)))
    y = xp.sub(shifted, log(xp, total(xp, exp(xp, shifted), (axis,))))
    return y, (y,)


def _of_log_softmax(xp: Any, saved: tuple[Any], gradient: Any, axis: int) -> tuple[Any]:
    return (xp.sub(gradient, xp.mul(exp(xp, saved[0]), total(xp, gradient, (axis,)))),)


def _cross_entropy(xp: Any, x: Any, target: Any, axis: int) -> tuple[Any, tuple[Any, ...]]:
    # Terms are chosen by `where`, not multiplied with zeros and ones: a logarithm may be -inf, and 0 * inf is NaN.
    logarithms, _ = log_softmax(xp, x, axis)
    axes, zeros = tuple(range(x.ndim)), xp.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x)
    ignored, known = _kinds_of(xp, target, x, axis)
    counted = total(xp, xp.where(ignored, zeros, 1.0), axes)
    terms = xp.where(known, xp.where(_chosen(xp, x, target, axis), logarithms, 0.0), nan)
    sum_ = total(xp, xp.where(ignored, 0.0, terms), axes)
    return squeezed(-xp.div(sum_, counted), axes), (logarithms, target, counted)


def _of_cross_entropy(xp: Any, saved: tuple[Any, ...], gradient: Any, axis: int) -> tuple[Any, None]:
    logarithms, target, counted = saved
    share = xp.div(gradient, counted)
    chosen = _chosen(xp, logarithms, target, axis)
    probability = exp(xp, logarithms)
    difference = xp.where(chosen, xp.sub(probability, 1.0), probability)
    ignored, known = _kinds_of(xp, target, logarithms, axis)
    return xp.where(ignored, 0.0, xp.where(known, xp.mul(difference, share), nan)), None


def _kinds_of(xp: Any, target: Any, x: Any, axis: int) -> tuple[Any, Any]:
    """Two masks of targets: one is True where a target is ignored, the other where it is a class."""
    numbers = xp.to_float64(_beside(target, x, axis))  # int8 may not have the number of classes
    return numbers == IGNORED, (numbers >= 0) & (numbers < x.shape[axis])


def _beside(target: Any, x: Any, axis: int) -> Any:
    return target.reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :]))


def _chosen(xp: Any, x: Any, target: Any, axis: int) -> Any:
    """True where the class along an axis is the target."""
    classes = xp.arange(x.shape[axis], x).reshape((-1, *(1,) * (x.ndim - 1 - axis)))
    return _beside(target, x, axis) == classes


def _mean_squared_error(xp: Any, x: Any, target: Any) -> tuple[Any, tuple[Any]]:
    difference, axes = xp.sub(x, target), tuple(range(x.ndim))
    return squeezed(xp.div(dot(xp, difference, difference, axes), float(prod(x.shape))), axes), (difference,)


def _of_mean_squared_error(xp: Any, saved: tuple[Any], gradient: Any) -> tuple[Any, Any]:
    (difference,) = saved
    found = xp.mul(difference, xp.div(xp.mul(gradient, 2.0), float(prod(difference.shape))))
    return found, -found


SOFTMAX = Differentiable(_softmax, _of_softmax)
LOG_SOFTMAX = Differentiable(log_softmax, _of_log_softmax)
CROSS_ENTROPY = Differentiable(_cross_entropy, _of_cross_entropy)
MSE = Differentiable(_mean_squared_error, _of_mean_squared_error)


def _scaled(xp: Any, h: Any, weight: Any, bias: Any) -> Any:
    h = h if weight is None else xp.mul(h, weight)
    return h if bias is None else xp.add(h, bias)


def _inward(xp: Any, h: Any, root: Any, gradient: Any, axes: Axes, centred: bool) -> Any:
    """The gradient of x, where h = (x - mean) / root, or x / root if it is not centred."""
    # h sums to zero, so its product with the gradient is the same before and after the gradient is centred.
    count = float(size(h, axes))
    along = xp.mul(h, xp.div(dot(xp, gradient, h, axes), count))
    gradient = xp.sub(gradient, mean(xp, gradient, axes)) if centred else gradient
    return xp.div(xp.sub(gradient, along), root)


def _of_parameters(xp: Any, h: Any, gradient: Any, weight: Any, has_bias: bool, axes: Axes) -> tuple[Any, Any]:
    """The gradients of weight and bias: sums along the axes of x that weight and bias do not have."""
    kept = tuple([size for axis, size in enumerate(h.shape) if axis not in axes])
    of_weight = None if weight is None else dot(xp, gradient, h, axes).reshape(kept)
    return of_weight, total(xp, gradient, axes).reshape(kept) if has_bias else None


def _layer_norm(xp: Any, x: Any, weight: Any, bias: Any, axes: Axes, eps: float, centred: bool) -> Any:
    """Layer norm, or RMS norm with centred=False."""
    c = xp.sub(x, mean(xp, x, axes)) if centred else x
    root = xp.sqrt(xp.add(xp.div(dot(xp, c, c, axes), float(size(x, axes))), eps))
    h = xp.div(c, root)
    return _scaled(xp, h, weight, bias), (h, root, weight, bias)


def _of_layer_norm(xp: Any, saved: Any, gradient: Any, axes: Axes, eps: float, centred: bool) -> tuple[Any, ...]:
    h, root, weight, bias = saved
    others = tuple([axis for axis in range(h.ndim) if axis not in axes])
    of_parameters = _of_parameters(xp, h, gradient, weight, bias is not None, others)
    gradient = gradient if weight is None else xp.mul(gradient, weight)
    return _inward(xp, h, root, gradient, axes, centred), *of_parameters


def _batch_norm(xp: Any, x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, tuple[Any, ...]]:
    axes, shape = _channels(x)
    centre = mean(xp, x, axes)
    c = xp.sub(x, centre)
    squares = dot(xp, c, c, axes)
    count = size(x, axes)
    variance = xp.div(squares, float(count))
    root = xp.sqrt(xp.add(variance, eps))
    h = xp.div(c, root)
    weight, bias = (None if p is None else p.reshape(shape) for p in (weight, bias))
    # As in torch: the batch is normalized with the biased variance, and the running one takes the unbiased. A single
    # number has variance 0, not 0 / 0.
    unbiased = xp.div(squares, float(max(count - 1, 1)))
    return (_scaled(xp, h, weight, bias), centre.reshape((-1,)), unbiased.reshape((-1,))), (h, root, weight, bias)


def _of_batch_norm(xp: Any, saved: Any, gradients: Any, eps: float) -> tuple[Any, ...]:
    """The gradients of x, weight and bias. The statistics are not trained, so their gradients are not used."""
    h, root, weight, bias = saved
    gradient, axes = gradients[0], _channels(h)[0]
    of_parameters = _of_parameters(xp, h, gradient, weight, bias is not None, axes)
    gradient = gradient if weight is None else xp.mul(gradient, weight)
    return _inward(xp, h, root, gradient, axes, True), *of_parameters


def _normalize(xp: Any, x: Any, centre: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Any:
    shape = _channels(x)[1]
    centre, variance = centre.reshape(shape), variance.reshape(shape)
    weight, bias = (None if p is None else p.reshape(shape) for p in (weight, bias))
    root = xp.sqrt(xp.add(variance, eps))
    h = xp.div(xp.sub(x, centre), root)
    return _scaled(xp, h, weight, bias), (h, root, weight, bias)


def _of_normalize(xp: Any, saved: Any, gradient: Any, eps: float) -> tuple[Any, ...]:
    h, root, weight, bias = saved
    of_parameters = _of_parameters(xp, h, gradient, weight, bias is not None, _channels(h)[0])
    gradient = gradient if weight is None else xp.mul(gradient, weight)
    return xp.div(gradient, root), None, None, *of_parameters


def _channels(x: Any) -> tuple[Axes, tuple[int, ...]]:
    """All axes but the second, and the shape in which numbers of channels broadcast with x."""
    return (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))


def moving_average(xp: Any, old: Any, new: Any, momentum: float) -> Any:
    """(1 - momentum) * old + momentum * new."""
    return xp.add(xp.mul(old, 1.0 - momentum), xp.mul(new, momentum))


LAYER_NORM = Differentiable(_layer_norm, _of_layer_norm)
BATCH_NORM = Differentiable(_batch_norm, _of_batch_norm)
NORMALIZE = Differentiable(_normalize, _of_normalize)
MOVING_AVERAGE = Differentiable(
    lambda xp, old, new, momentum: (moving_average(xp, old, new, momentum), ()),
    lambda xp, saved, gradient, momentum: (None, None),
)


class NormFunctions(ReductionFunctions):
    """`ReductionFunctions`, softmax, losses and norms."""

    @public
    def softmax(self, x: Any, axis: int = -1) -> Any:
        """exp(x - max) / sum along an axis, each step rounded to float32; the sum has no order.

        Exponentials are added as integers, in units of 2^-42. So numbers of -inf beside a row of at most 2^20 change
        no bit of it, nor does the order of the numbers.

        Args:
            x: float32 array.
            axis: the axis.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above, or there are no numbers along the axis.

        Example:
            >>> reproducible.softmax(np.float32([0.0, 0, -np.inf])).tolist()
            [0.5, 0.5, 0.0]
        """
        return self._along(SOFTMAX, x, axis)

    @public
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
            >>> reproducible.log_softmax(np.float32([0, -np.inf])).tolist()
            [0.0, -inf]
        """
        return self._along(LOG_SOFTMAX, x, axis)

    @public
    def cross_entropy(self, x: Any, target: Any, axis: int = -1) -> Any:
        """The mean of -log_softmax(x) at the target classes; examples with target -100 are left out.

        NaN if all are left out, or if a target is not a class. The logits of a target that is not a class have NaN
        gradients.

        Args:
            x: float32 array of logits.
            target: array of integers, of x's shape without the axis.
            axis: the axis of classes.

        Returns:
            A float32 array without dimensions.

        Example:
            >>> logits, target = np.float32([[0.0, -200], [0, -200], [9, 9]]), np.array([0, 1, -100])
            >>> float(reproducible.cross_entropy(logits, target))  # the mean of 0 and 200
            100.0
        """
        x, target = self.float32("x", x), self.integers("target", target)
        axis = check_axis(axis, x)
        check_numbers(x, (axis,))
        if tuple(target.shape) != (wanted := tuple(x.shape[:axis] + x.shape[axis + 1 :])):
            raise ValueError(f"target has shape {tuple(target.shape)}; allowed is {wanted}")
        return self.call(CROSS_ENTROPY, x, target, axis=axis)

    @public
    def mse(self, x: Any, target: Any) -> Any:
        """The mean of the exact squares of x - target, for float32 arrays of one shape.

        Args:
            x, target: float32 arrays of one shape.

        Returns:
            A float32 array without dimensions.

        Example:
            >>> float(reproducible.mse(np.float32([1.0, 2]), np.float32([1.0, 4])))
            2.0
        """
        x = self.float32("x", x)
        return self.call(MSE, x, self._of_shape("target", target, tuple(x.shape)))

    @public
    def layer_norm(self, x: Any, weight: Any = None, bias: Any = None, axis: Any = -1, eps: float = 1e-5) -> Any:
        """(x - mean) / sqrt(variance + eps) * weight + bias along axes, each step rounded to float32.

        Args:
            x: float32 array.
            weight, bias: float32 arrays of the sizes along the axes, which are the last ones; or None.
            axis: an axis, or several.
            eps: added to the variance, at least 0.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.layer_norm(np.float32([1.0, 2, 3]), eps=0.0).tolist()
            [-1.2247447967529297, 0.0, 1.2247447967529297]
        """
        return self._layer_norm(x, weight, bias, axis, eps, True)

    @public
    def rms_norm(self, x: Any, weight: Any = None, axis: Any = -1, eps: float = 1e-5) -> Any:
        """x / sqrt(mean(x^2) + eps) * weight along axes, each step rounded to float32.

        Args:
            x: float32 array.
            weight: float32 array of the sizes along the axes, which are the last ones; or None.
            axis: an axis, or several.
            eps: added to the mean of the squares, at least 0.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.rms_norm(np.float32([1.0, 7]), eps=0.0).tolist()  # the root of (1 + 49) / 2 is 5
            [0.20000000298023224, 1.399999976158142]
        """
        return self._layer_norm(x, weight, None, axis, eps, False)

    @public
    def group_norm(self, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        """`layer_norm` of each group of channels, times weight (`multiply`) plus bias (`add`) of each channel.

        Instance norm is the case of one channel in each group.

        Args:
            x: float32 array of shape (batch, channels, ...).
            groups: the number of groups, a divisor of the number of channels.
            weight, bias: float32 arrays of shape (channels,), or None.
            eps: added to the variance, at least 0.

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.group_norm(np.float32([[1.0, 3, 5, 9]]), 2, eps=0.0).tolist()
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

    @public
    def batch_norm(self, x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> tuple[Any, Any, Any]:
        """`layer_norm` of each channel over all axes but the second; also returns means and unbiased variances.

        Args:
            x: float32 array of shape (batch, channels, ...).
            weight, bias: float32 arrays of shape (channels,), or None.
            eps: added to the (biased) variance, at least 0.

        Returns:
            The normalized array, and the means and unbiased variances of shape (channels,).

        Example:
            >>> y, mean, variance = reproducible.batch_norm(np.float32([[1.0], [3]]), eps=0.0)
            >>> y.tolist(), mean.tolist(), variance.tolist()
            ([[-1.0], [1.0]], [2.0], [2.0])
        """
        x = self._with_channels(x)
        weight, bias = self._parameters(weight, bias, (x.shape[1],))
        return self.call(BATCH_NORM, x, weight, bias, eps=check_float("eps", eps))

    @public
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

        Example:
            >>> reproducible.normalize(
            ...     np.float32([[5.0]]), np.float32([1.0]), np.float32([4.0]), eps=0.0
            ... ).tolist()
            [[2.0]]
        """
        x = self._with_channels(x)
        shape = (x.shape[1],)
        mean, variance = self._of_shape("mean", mean, shape), self._of_shape("variance", variance, shape)
        weight, bias = self._parameters(weight, bias, shape)
        return self.call(NORMALIZE, x, mean, variance, weight, bias, eps=check_float("eps", eps))

    @public
    def moving_average(self, old: Any, new: Any, momentum: float) -> Any:
        """(1 - momentum) * old + momentum * new; it has no gradients.

        Args:
            old, new: float32 arrays that broadcast.
            momentum: the part of the new numbers, from 0 to 1.

        Returns:
            A float32 array of the shape that both broadcast to.

        Example:
            >>> float(reproducible.moving_average(np.float32(1.0), np.float32(3.0), 0.25))
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
