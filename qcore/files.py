"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replaced(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> Iterator[Path]:
    """Yields a fresh file beside a path. At the end it replaces the path; after an error the old file stays.

    A device or a pipe such as /dev/stdout is written directly; for a link, its target is replaced. The new file has the
    mode of the old one, or the default mode.
    """
    target = Path(os.path.realpath(os.fsdecode(path)))
    before = target.stat() if target.exists() else None
    if before is not None and not stat.S_ISREG(before.st_mode):
        yield target
        return
    # The ending stays, for writers that read a file's kind from it.
    fresh = target.with_name(f".{target.stem[:100]}-{secrets.token_hex(4)}{target.suffix}")
    try:
        fresh.open("xb").close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from None
    mode = stat.S_IMODE((before or fresh.stat()).st_mode)
    try:
        yield fresh
        fresh.chmod(mode)  # writers that put another file in the fresh one's place give it their own
        with fresh.open("rb+") as file:  # some disks report only now that they are full
            os.fsync(file.fileno())
        os.replace(fresh, target)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes text in UTF-8, with lines that end alike on all systems; see `replaced`."""
    with replaced(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="\n")
