"""Functions of float32 numbers in pieces, and of numbers that move, by loops: nothing of the library's.

Each oracle returns the result and, for a gradient of the result, the gradients of the arrays.
"""

import numpy as np

SMALLEST = np.float32(2.0**-126)
F32 = np.float32


def settled(x):
    """Zeros of their sign in the place of the smallest numbers, and one NaN."""
    x = np.asarray(x, F32)
    return np.where(np.isnan(x), F32(np.nan), np.where(abs(x) > SMALLEST, x, np.copysign(F32(0), x)))


def rounded(x):
    """Float64 numbers as float32, settled."""
    with np.errstate(all="ignore"):
        return settled(np.asarray(x, np.float64).astype(F32))


def mul(a, b):
    with np.errstate(all="ignore"):
        return settled(settled(a) * settled(b))


def div(a, b):
    with np.errstate(all="ignore"):
        return settled(settled(a) / settled(b))


def add(a, b):
    with np.errstate(all="ignore"):
        return settled(settled(a) + settled(b))


def halves(x, axes):
    """Float64 sums along axes, by halves of the index, an odd rest appended."""
    x = settled(x).astype(np.float64)
    with np.errstate(all="ignore"):
        for axis in axes:
            terms = np.moveaxis(x, axis, 0)
            while len(terms) > 1:
                half = len(terms) // 2
                terms = np.concatenate([terms[:half] + terms[half : 2 * half], terms[2 * half :]])
            x = np.moveaxis(terms, 0, axis)
    return rounded(x)


def of_copies(gradient, shape):
    """The gradient of an array of a shape that was copied to the gradient's."""
    extra = gradient.ndim - len(shape)
    axes = [i for i in range(gradient.ndim) if i < extra or (shape[i - extra] == 1 and gradient.shape[i] != 1)]
    return halves(gradient, axes).reshape(shape) if axes else settled(gradient)


def at(x, places, gradient, without=-1):
    """The numbers at row-major places, and the sums of gradients in pairs of neighbours."""
    flat, found = settled(x).reshape(-1), [[] for _ in range(x.size)]
    for place, one in zip(places.reshape(-1), settled(gradient).reshape(-1), strict=True):
        if place >= 0 and place != without:
            found[place].append(np.float64(one))
    for terms in found:
        while len(terms) > 1:
            pairs = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)]
            terms[:] = pairs + terms[len(terms) - len(terms) % 2 :]
    y = np.where(places >= 0, flat[np.maximum(places, 0)], F32(np.nan))
    return [y, rounded([terms[0] if terms else 0.0 for terms in found]).reshape(x.shape)]


def moved(move):
    """The oracle of a function that moves numbers."""
    return lambda x, gradient: at(x, move(np.arange(x.size).reshape(x.shape)), gradient)


def pieces(function, slope):
    """The oracle of a function of one number and its derivative, of settled float32 numbers."""

    def oracle(x, gradient):
        x = settled(x)
        with np.errstate(all="ignore"):
            return [settled(function(x)), mul(gradient, np.where(np.isnan(x), x, slope(x)))]

    return oracle


def prelu(x, weight, gradient):
    x, weight, gradient = settled(x), settled(weight), settled(gradient)
    y, of_x = np.where(x > 0, x, mul(x, weight)), np.where(x > 0, gradient, mul(gradient, weight))
    return [y, of_x, of_copies(np.where(x > 0, F32(0), mul(gradient, x)), weight.shape)]


def greater(a, b, gradient, sign=1):
    a, b, g = settled(a), settled(b), settled(gradient)
    first = (a >= b if sign > 0 else a <= b) | np.isnan(a)
    equal = np.where(a == b, mul(g, 0.5), F32(0))
    greater, less = (a > b, a < b) if sign > 0 else (a < b, a > b)
    of_a, of_b = np.where(greater, g, equal), np.where(less, g, equal)
    return [np.where(first, a, b), of_copies(of_a, a.shape), of_copies(of_b, b.shape)]


def where(condition, a, b, gradient):
    g, zero = settled(gradient), F32(0)
    of_a, of_b = np.where(condition, g, zero), np.where(condition, zero, g)
    return [np.where(condition, settled(a), settled(b)), of_copies(of_a, a.shape), of_copies(of_b, b.shape)]


def order(x, descending=False):
    """The places along the last axis, by Python's stable sort; NaN is the greatest."""
    keys = [[(np.isnan(one), 0.0 if np.isnan(one) else float(one)) for one in row] for row in settled(x)]
    return np.array([sorted(range(len(row)), key=row.__getitem__, reverse=descending) for row in keys])


def sort(x, gradient):
    places = order(x) + np.arange(len(x))[:, None] * x.shape[1]
    return at(x, places, gradient)


def windows(x, kernel, stride, padding, dilation, ceil_mode):
    """The places of each window's numbers in the last two axes, and how many of them lie in array or padding."""
    axes = []
    for i in range(2):
        length, size, step, pad, space = x.shape[-2 + i], kernel[i], stride[i], padding[i], dilation[i]
        last = length + 2 * pad - space * (size - 1) - 1
        count = (-(-last // step) if ceil_mode else last // step) + 1
        if ceil_mode and (count - 1) * step >= length + pad:
            count -= 1
        axes.append([[w * step + k * space - pad for k in range(size)] for w in range(count)])
    return axes


def pooled(x, gradient, kernel, stride, padding, dilation=(1, 1), ceil_mode=False, mean=False, padded=True):
    """Pools of one image, whose gradients are summed in float64, tap after tap."""
    rows, columns = windows(x, kernel, stride, padding, dilation, ceil_mode)
    (height, width), x, gradient = x.shape, settled(x), settled(gradient)
    y, parts = np.zeros(gradient.shape, F32), [[[] for _ in range(width)] for _ in range(height)]
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            taps = [(a * len(column) + b, r, c) for a, r in enumerate(row) for b, c in enumerate(column)]
            inside = [(tap, r, c) for tap, r, c in taps if 0 <= r < height and 0 <= c < width]
            if mean:
                reach = [r < height + padding[0] and c < width + padding[1] for _, r, c in taps]
                count = sum(reach) if padded else len(inside)
                y[i, j] = div(rounded(sum(np.float64(x[r, c]) for _, r, c in inside)), F32(count))
                each = [(one, div(gradient[i, j], F32(count))) for one in inside]
            else:
                best = next((one for one in inside[::-1] if np.isnan(x[one[1:]])), None)
                best = best or max(inside, key=lambda one: (x[one[1:]], -one[0]))
                y[i, j], each = x[best[1:]], [(best, gradient[i, j])]
            for (tap, r, c), one in each:
                parts[r][c].append((tap, np.float64(one)))
    sums = [[sum(one for _, one in sorted(cell, key=lambda pair: pair[0])) for cell in line] for line in parts]
    return [y, rounded(np.array(sums, np.float64))]


def group_norm(x, weight, bias, groups, eps):
    """The result alone: each group by halves of sums, then the channels' products and sums."""
    n = x.shape[0]
    rows = settled(x).reshape(n * groups, -1)
    count = F32(rows.shape[1])
    centred = add(rows, -div(halves(rows, [1]), count))
    squares = centred.astype(np.float64) ** 2
    terms = squares.T
    while len(terms) > 1:
        half = len(terms) // 2
        terms = np.concatenate([terms[:half] + terms[half : 2 * half], terms[2 * half :]])
    root = rounded(np.sqrt(add(div(rounded(terms[0]), count), F32(eps)).astype(np.float64)))
    y = div(centred, root[:, None]).reshape(x.shape)
    beside = (-1,) + (1,) * (x.ndim - 2)
    return add(mul(y, weight.reshape(beside)), bias.reshape(beside))
