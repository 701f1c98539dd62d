"""Which cases of a product of axes an ordinary run takes."""

from itertools import combinations, product

import pytest


def pairwise(**axes):
    """Parametrizes a test with all combinations; an ordinary run takes few that hold every pair of values of two axes.

    The others are heavy. An axis may have several names, as in `**{"mode, key": [("nearest", None), ...]}`.
    """
    places = _places(axes)
    pairs = {place: set(combinations(enumerate(place), 2)) for place in places}
    missing, chosen = set().union(*pairs.values()), set()
    while missing:
        best = max(places, key=lambda place: len(pairs[place] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return _parametrize(axes, chosen)


def some(*chosen, **axes):
    """Parametrizes a test with all combinations; an ordinary run takes those given by places in the axes."""
    return _parametrize(axes, set(chosen))


def usually(chosen, axis):
    """Parameters of one axis; those that are not chosen are heavy."""
    return [
        pytest.param(one, id=getattr(one, "__name__", str(one)), marks=() if one in chosen else pytest.mark.heavy)
        for one in axis
    ]


def _places(axes):
    return list(product(*(range(len(axis)) for axis in axes.values())))


def _parametrize(axes, chosen):
    """A test's parameters: combinations that are not chosen are heavy."""
    parameters = []
    for place in _places(axes):
        values = [axis[i] for axis, i in zip(axes.values(), place, strict=True)]
        flat = [x for value, names in zip(values, axes, strict=True) for x in (value if "," in names else [value])]
        marks = [] if place in chosen else [pytest.mark.heavy]
        parameters.append(pytest.param(*flat, id="-".join(getattr(x, "__name__", str(x)) for x in flat), marks=marks))
    return pytest.mark.parametrize(", ".join(axes), parameters)
