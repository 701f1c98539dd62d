"""What the tests against other packages share: inputs on which rounding goes wrong, and differences that are known.

A known difference has a name and a predicate over inputs. Comparing asserts that the results differ exactly where
the predicates say, and returns how often, so that tests can pin the counts on inputs that are the same everywhere.
"""

from collections import Counter

import ml_dtypes
import numpy as np
from support import bits

import qcore

PATTERNS = 10**6
SEED = 20_261_120


def numbers_of(name):
    """All numbers of a format with a name, in the order of their codes."""
    return qcore.decode(np.arange(2 ** qcore.NAMED[name][0].bits), name)


def points(numbers, dtype=np.float32):
    """Where formats with these numbers round differently: the same inputs on every machine.

    Args:
        numbers: an array of the format's numbers; negative ones and those that are not finite are ignored.
        dtype: of the result; what it does not hold exactly is left out.

    Returns:
        The numbers, a few beyond the largest, the midpoints, what lies below the smallest, and both neighbours in dtype
        of all these; infinities, NaNs, zeros, the ends of dtype and of its subnormals. All with both signs.
    """
    numbers = np.unique(np.abs(numbers[np.isfinite(numbers)].astype(np.float64)))
    numbers = numbers[numbers > 0]
    largest = numbers[-1]
    step = largest - numbers[-2] if len(numbers) > 1 else largest
    with np.errstate(over="ignore"):
        beyond = np.concatenate([largest + step * np.arange(1, 5), largest * 2.0 ** np.arange(1, 5)])
    grid = np.unique(np.concatenate([[0.0], numbers, beyond[np.isfinite(beyond)]]))
    deep = numbers[0] * np.ldexp(np.array([[1.0], [1.5]]), -np.arange(1, 30)).ravel()
    exact = np.concatenate([grid, grid[1:] / 2 + grid[:-1] / 2, deep])
    with np.errstate(over="ignore", under="ignore"):
        exact = exact[exact.astype(dtype).astype(np.float64) == exact].astype(dtype)
        found = np.concatenate([exact, np.nextafter(exact, dtype(np.inf)), np.nextafter(exact, dtype(0)), _ends(dtype)])
    return np.concatenate([found, -found])


def _ends(dtype):
    info = ml_dtypes.finfo(dtype)
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    infinity, quiet = int(np.array(np.inf, dtype).view(unsigned)), 1 << info.nmant - 1
    specials = [infinity + payload for payload in (-1, 0, 1, 2, quiet, quiet + 1, 2 * quiet - 1)]
    subnormals = [power - bit for power in (1 << np.arange(info.nmant + 1)).tolist() for bit in (0, 1)]
    ordinary = np.array([1.0, info.smallest_normal], dtype)
    return np.concatenate([np.array(specials + subnormals, unsigned).view(dtype), ordinary])


def patterns(count=PATTERNS, dtype=np.float32, seed=SEED):
    """Random bit patterns, each as likely as any other: NaN payloads, infinities and subnormals among them."""
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    high = np.iinfo(unsigned).max
    return np.random.default_rng(seed).integers(0, high, count, unsigned, endpoint=True).view(dtype)


def inside(numbers, count=PATTERNS // 10, dtype=np.float32, seed=SEED):
    """Random numbers that are all around a format's range, where random bit patterns seldom are."""
    numbers = np.abs(numbers[np.isfinite(numbers)].astype(np.float64))
    low, high = np.log2(numbers[numbers > 0].min()) - 3, np.log2(numbers.max()) + 2
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore", under="ignore"):
        return (2 ** rng.uniform(low, high, count) * rng.choice([-1.0, 1.0], count)).astype(dtype)


def widened(x):
    """The same numbers in float64; NumPy warns of signaling NaNs."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def same_numbers(actual, expected):
    """Where two arrays of one dtype have the same bits, or both a NaN: no peer keeps the bits of NaN as we do."""
    with np.errstate(invalid="ignore"):  # ml_dtypes warns of signaling NaNs
        return (bits(actual) == bits(expected)) | (np.isnan(actual) & np.isnan(expected))


def compare(x, same, known=None, message=""):
    """Asserts that results differ exactly where they are known to, and returns how often for each reason.

    Args:
        x: the inputs.
        same: where our result is the peer's.
        known: {name of a difference: where it is}; where two meet, both count.
        message: what was compared.
    """
    known = {name: where for name, where in (known or {}).items() if where.any()}
    expected = np.zeros(x.shape, bool)
    for where in known.values():
        expected |= where
    wrong = np.flatnonzero(same == expected)
    if len(wrong):
        new = [x[i] for i in wrong if not expected[i]][:4]
        gone = [x[i] for i in wrong if expected[i]][:4]
        raise AssertionError(f"{message}: {len(wrong)} of {x.size}: unexpected differences at {new}, none at {gone}")
    return Counter({name: int(where.sum()) for name, where in known.items()})
