"""`python -m website`: writes what is generated in docs, from the formats and from `benchmarks/results`."""

from functools import partial

from qcore.files import write_text
from qcore.pictures import in_two_widths
from website import landing, same_bits
from website.figures import with_figures
from website.plots import PICTURES, draw
from website.records import ROOT

landing.draw(ROOT / "docs" / "assets")
same_bits.draw(ROOT / "docs" / same_bits.NAME)
for name, formats in PICTURES.items():
    in_two_widths(partial(draw, formats), ROOT / "docs" / name)
for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
    before = path.read_text(encoding="utf-8")
    after = with_figures(before)
    if after != before:
        write_text(path, after)
        print(path)
