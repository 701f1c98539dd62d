"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_PART = re.compile(r"\..*\.part-[0-9a-f]{8}(\.[^.]*)?")  # a file that is being written
_HOUR = 3600  # seconds after which it is not: its writer was killed
_DESCRIPTORS = re.compile(r"/proc/(\d+)(/task/\d+)?/fd")  # the folder of a process's open files


@contextmanager
def replaced(path: AnyPath) -> Iterator[Path]:
    """Yields a fresh file beside a path. At the end it replaces the path; after an error the old file stays.

    For a link, its target is replaced. The new file has the mode of the old one, or the default mode. What killed
    processes left in the folder goes after an hour. A device or a named pipe is written directly. An open file such as
    /dev/stdout gets the fresh file's content at the end.
    """
    with replaced_together([path]) as (fresh,):
        yield fresh


@contextmanager
def replaced_together(paths: Sequence[AnyPath]) -> Iterator[list[Path]]:
    """Yields a fresh file for each path, as `replaced`; none replaces its path before all are on the disk."""
    with ExitStack() as files:
        fresh = [files.enter_context(_fresh(os.fsdecode(path))) for path in paths]
        yield [part.path for part in fresh]
        for part in fresh:
            if isinstance(part.target, Path):
                part.path.chmod(part.mode)  # writers that put another file in the fresh one's place give it their own
                with part.path.open("rb+") as file:  # some disks report only now that they are full
                    os.fsync(file.fileno())
        for part in fresh:
            if isinstance(part.target, Path):
                os.replace(part.path, part.target)
            elif part.target is not None:
                with part.path.open("rb") as file, os.fdopen(os.dup(part.target), "wb") as opened:
                    shutil.copyfileobj(file, opened)


def write_text(path: AnyPath, text: str) -> None:
    """Writes text in UTF-8, with lines that end alike on all systems; see `replaced`."""
    write_texts({Path(os.fsdecode(path)): text})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Writes texts by path, all or none; see `write_text`."""
    with replaced_together([*texts]) as fresh:
        for path, text in zip(fresh, texts.values(), strict=True):
            path.write_text(text, encoding="utf-8", newline="\n")


def is_regular(path: AnyPath) -> bool:
    """Whether a path names a file on a disk, or nothing yet: no device, no pipe, no open file such as /dev/stdout."""
    name = os.fsdecode(path)
    return _descriptor(name) is None and (not os.path.exists(name) or os.path.isfile(name))


class _Part(NamedTuple):
    """A file to write.

    Attributes:
        path: its path.
        target: the path that it replaces, or the number of the open file that gets its content; None if it is written
            directly.
        mode: of the file that replaces a path.
    """

    path: Path
    target: Path | int | None
    mode: int = 0


@contextmanager
def _fresh(path: str) -> Iterator[_Part]:
    """The file to write for a path; what is left of it at the end goes."""
    descriptor = _descriptor(path)
    if descriptor is not None:
        with tempfile.TemporaryDirectory() as folder:
            yield _Part(Path(folder, "content"), descriptor)
        return
    if not is_regular(path):
        yield _Part(Path(path), None)
        return
    target = Path(os.path.realpath(path))
    _clear_parts(target.parent)
    # The ending stays, for writers that read a file's kind from it.
    stem = os.fsdecode(os.fsencode(target.stem)[:100])
    fresh = target.with_name(f".{stem}.part-{secrets.token_hex(4)}{target.suffix}")
    try:
        fresh.open("xb").close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    try:
        yield _Part(fresh, target, stat.S_IMODE((target if target.exists() else fresh).stat().st_mode))
    finally:
        with suppress(OSError):
            fresh.unlink()


def _descriptor(path: str) -> int | None:
    """The number of the open file of this process that a path names, as /dev/stdout does; None for other paths.

    Such a path is a link to a pipe without a name, or to a file, which must not be replaced while others have it open.
    """
    for _ in range(40):  # the most links that Linux follows
        folder, name = os.path.split(path)
        found = _DESCRIPTORS.fullmatch(os.path.realpath(folder))
        if found and name.isdecimal():
            return int(name) if int(found[1]) == os.getpid() else None
        if not os.path.islink(path):
            return None
        path = os.path.join(folder, os.readlink(path))
    return None


def _clear_parts(folder: Path) -> None:
    """Removes what killed processes left in a folder more than an hour ago."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _PART.fullmatch(entry.name) and entry.stat().st_mtime < time.time() - _HOUR:
                os.unlink(entry.path)
