"""The kernels of docs/check-your-kernel.md have as many faults as the page names: without them no bit differs."""

import re
import shutil
import sys
from types import ModuleType

import pytest
from covering import usually
from documents import programs, text_of

from qcore.__main__ import main

PAGE = "docs/check-your-kernel.md"
# Each fault of a tab: the line of the kernel, and one without the fault.
TIES = """magnitude = {xp}.abs(x / scale)
    place = {search}
    tie = (place < 7) & (magnitude == MIDDLES[{xp}.clip(place, 0, 6)])
    magnitude = GRID[place + (tie & (place % 2 == 1))]"""
FAULTS = {
    "PyTorch": {
        "ties": (
            "magnitude = GRID[torch.bucketize((x / scale).abs(), MIDDLES)]",
            TIES.format(xp="torch", search="torch.bucketize(magnitude, MIDDLES)"),
        ),
        "log2": ("torch.floor(torch.log2(largest))", "(torch.frexp(largest).exponent - 1)"),
        "infinity": (
            "return torch.copysign(magnitude * scale, x)",
            "return torch.where(largest.isfinite(), torch.copysign(magnitude * scale, x), torch.nan)",
        ),
        "least scale": ("torch.exp2(", "(lambda exponent: torch.exp2(exponent.clamp(min=-127)))("),
    },
    "JAX": {
        "ties": (
            "magnitude = GRID[jnp.searchsorted(MIDDLES, jnp.abs(x / scale))]",
            TIES.format(xp="jnp", search="jnp.searchsorted(MIDDLES, magnitude)"),
        ),
        "log2": ("jnp.floor(jnp.log2(largest))", "(jnp.frexp(largest)[1] - 1)"),
        "infinity": (
            "return jnp.copysign(magnitude * scale, x)",
            "return jnp.where(jnp.isfinite(largest), jnp.copysign(magnitude * scale, x), jnp.nan)",
        ),
        "exp2": ("jnp.exp2(", "(lambda exponent: jnp.ldexp(jnp.ones(()), exponent.astype(int)))("),
    },
}
COUNT = {3: "three", 4: "four", 5: "five"}


@pytest.mark.parametrize("tab", usually(("PyTorch",), FAULTS))  # JAX's functions compile each fault
def test_each_fault_is_one(tab, tmp_path, monkeypatch, capsys):
    """Without faults no row differs, and with each of them alone some do."""
    monkeypatch.chdir(tmp_path)
    kernel, judge, _ = programs(PAGE, tab)
    faults = FAULTS[tab]
    main(["vectors", "mxfp4", "--rounding", "nearest", "-o", "right.csv"])

    def differing(left=None):
        """The number of rows that differ in a kernel with one fault, or none."""
        shutil.copy("right.csv", "vectors.csv")
        text = kernel
        for name, (line, mended) in faults.items():
            assert line in text
            text = text if name == left else text.replace(line, mended)
        module = ModuleType("kernel")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(f"{text}\n{judge}", PAGE, "exec"), vars(module))
        capsys.readouterr()
        main(["check", "vectors.csv", "--any-nan"])
        return int(re.search(r": (\d+) of \d+ lines differ", capsys.readouterr().out)[1])

    assert differing() == 0
    assert all(differing(name) for name in faults)
    assert f"Here it finds {COUNT[len(faults)]} faults." in text_of(PAGE)
