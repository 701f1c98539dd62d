"""An ordinary run holds every pair of values of the axes of a product, and the heavy tests the rest."""

from itertools import combinations, product

from covering import pairwise


def test_pairwise():
    axes = {"a": list("uvw"), "b, c": [(1, 2), (3, 4)], "d": [False, True], "e": list("xyz")}
    names, parameters = pairwise(**axes).args
    assert names == "a, b, c, d, e"
    assert [one.values for one in parameters] == [(a, *b, d, e) for a, b, d, e in product(*axes.values())]
    ordinary = [one.values for one in parameters if not one.marks]
    assert 9 <= len(ordinary) <= 12
    for (i, first), (j, second) in combinations([(0, "uvw"), (1, (1, 3)), (3, (False, True)), (4, "xyz")], 2):
        assert {(values[i], values[j]) for values in ordinary} == set(product(first, second))
