"""What the tests of the command line share."""

import pytest

from qcore.__main__ import main


def refused(capsys, *arguments):
    """What a refused command line prints."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    return capsys.readouterr().err
