"""Which cases of a product of axes an ordinary run takes."""

from itertools import combinations, product

import pytest


def pairwise(**axes):
    """Parametrizes a test with all combinations; an ordinary run takes few that hold every pair of values of two axes.

    The others are heavy. An axis may have several names, as in `**{"mode, key": [("nearest", None), ...]}`.
    """
    places = list(product(*(range(len(axis)) for axis in axes.values())))
    pairs = {place: set(combinations(enumerate(place), 2)) for place in places}
    missing, chosen = set().union(*pairs.values()), set()
    while missing:
        best = max(places, key=lambda place: len(pairs[place] & missing))
        chosen.add(best)
        missing -= pairs[best]
    parameters = []
    for place in places:
        values = [axis[i] for axis, i in zip(axes.values(), place, strict=True)]
        flat = [x for value, names in zip(values, axes, strict=True) for x in (value if "," in names else [value])]
        marks = [] if place in chosen else [pytest.mark.heavy]
        parameters.append(pytest.param(*flat, id="-".join(map(str, flat)), marks=marks))
    return pytest.mark.parametrize(", ".join(axes), parameters)
