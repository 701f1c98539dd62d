"""What the tests of the command line share."""

import pytest

from qcore.__main__ import main

OTHERS = (
    "p3109(8,8)",
    "p3109(3,1)",
    "p3109(5,5,signed=False)",
    "p3109(4,2,extended=False)",
    "p3109(6,4,signed=False,extended=False)",
    "fixed(12,20)",
    "fixed(1,0)",
    "fixed(8,4,signed=False)",
    "float(1,3)",
    "posit(6,1)",
    "binary(3,2,specials=fn,overflow=saturate)",
)  # formats without names, of all kinds that are rounded number by number


def refused(capsys, *arguments):
    """What a refused command line prints."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    return capsys.readouterr().err
