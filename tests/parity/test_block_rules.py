"""Every Microscaling format under every scale rule, and NVFP4, in every mode, on all backends."""

import pytest
from covering import usually
from support import BACKENDS, assert_same_bits, by_numpy

from benchmarks.support.inputs import MODES, hard_inputs
from qcore import NAMED, BlockScaled
from qcore.formats.block import RULES

MX = [number for number, _ in NAMED.values() if isinstance(number, BlockScaled)]
NUMBERS = [BlockScaled(number.element, number.block, rule) for number in MX for rule in RULES]


def compared(number, count, backends_of):
    (x,) = hard_inputs(number, count)
    for mode, backends in backends_of.items():
        expected = by_numpy(x, number, mode, 6)
        for name in backends:
            assert_same_bits(BACKENDS[name](x, number, mode, 6), expected, f"{name}: {number} {mode}")


SOME = [number for i, number in enumerate(NUMBERS) if (i // len(RULES) - i) % 3 == 0]


@pytest.mark.parametrize("number", usually(SOME, NUMBERS))
def test_without_kernels(number):
    """A sixth of the modes each in torch; one format of each rule in one of them under jit."""
    place, rule = NUMBERS.index(number), [*RULES].index(number.rule)
    modes = MODES[place % 6 :: 6]
    jitted = modes[rule % len(modes)] if place // len(RULES) == rule % len(MX) else None
    compared(number, 9_000, {mode: ("torch ops", "jax jit") if mode == jitted else ("torch ops",) for mode in modes})


@pytest.mark.heavy
@pytest.mark.parametrize("number", [*NUMBERS, NAMED["nvfp4"][0]], ids=str)
def test_all_backends(number):
    """In each mode."""
    compared(number, 30_000, dict.fromkeys(MODES, BACKENDS))
