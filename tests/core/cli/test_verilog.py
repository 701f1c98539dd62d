"""A dot-product unit in Verilog has the law's bits under Icarus Verilog, by `$readmemh` and `check`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from qcore.__main__ import main

FOLDER = Path(__file__).parent / "verilog"
ROWS = 700

pytestmark = pytest.mark.skipif(shutil.which("iverilog") is None, reason="needs Icarus Verilog: apt install iverilog")


def results_of(folder, unit):
    """Runs the bench with a unit on the folder's vectors; returns the exit status of `check`."""
    (folder / "step.v").write_text(unit)
    subprocess.run(
        ["iverilog", "-g2005-sv", f"-Pbench.ROWS={ROWS}", "-o", "unit", "step.v", FOLDER / "bench.v"],
        cwd=folder,
        check=True,
    )
    subprocess.run(["vvp", "unit"], cwd=folder, check=True, timeout=60, capture_output=True)
    comment = (folder / "vectors.mem").read_text().partition("\n")[0]
    results = folder / "results.mem"
    results.write_text(comment + "\n" + results.read_text())
    return main(["check", str(results)])


@pytest.fixture
def folder(tmp_path):
    arguments = ["vectors", "hopper.wgmma.e4m3", "--count", str(ROWS), "-o", str(tmp_path / "vectors.mem")]
    assert main(arguments) == 0
    return tmp_path


def test_the_unit_has_the_bits_of_the_law_and_a_wrong_one_has_not(capsys, folder):
    unit = (FOLDER / "step.v").read_text()
    assert results_of(folder, unit.replace("10 + top - e", "9 + top - e")) == 1
    capsys.readouterr()
    assert results_of(folder, unit) == 0
    assert f"0 of {ROWS} rows differ (accumulator(design=hopper.wgmma.e4m3), 64 terms; {ROWS} fields" in (
        capsys.readouterr().out
    )
