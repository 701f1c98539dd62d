"""The array namespaces of the three packages have the same names, and each framework its own functions for them."""

import pytest

from qcore.namespace import Names
from qjax._namespace import Names as JaxNames
from qtorch._namespace import Names as TorchNames

# Methods of the base class that suit the framework's arrays as they are.
INHERITED = {
    # Eager branches and loops read the flag; names are for C; programs are JAX's.
    TorchNames: {"cond", "while_loop", "named", "program"},
    JaxNames: {
        "named",
        "dtype",
        "float32_bits",
        "float32_from",
        "float_bits",
        "integers",
        "product_bits",
        "quotient_bits",
    },
}


def public(names):
    return {name for name in vars(names) if not name.startswith("_")}


@pytest.mark.parametrize("names", INHERITED)
def test_names_are_the_same(names):
    assert public(names) | INHERITED[names] == public(Names)
    assert public(names) & INHERITED[names] == set()
