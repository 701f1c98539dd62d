"""Files that pages of the inside name are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = "".join((ROOT / "docs" / page).read_text() for page in ("how-it-works.md", "inside.md"))


def test_the_files_exist():
    paths = set(re.findall(r"`((?:qcore|qtorch|qjax|tests)/[\w/.]+\.\w+)`", TEXT))
    assert len(paths) > 15
    assert not [path for path in paths if not (ROOT / path).exists()]
