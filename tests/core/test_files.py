"""Files are written whole or not at all: the earlier one survives a full disk."""

import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from benchmarks.support.results import write_results
from qcore.affine import checkpoint
from qcore.cli import vectors
from qcore.files import replaced, write_text, write_texts
from qcore.insight import Record
from website.plots import draw


@contextmanager
def full_disk():
    """Files of this process end at 16 bytes: the system refuses the rest, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def save_torch(path):
    torch = pytest.importorskip("torch")
    from qtorch._affine import checkpoint

    checkpoint.save(path, {"w": torch.ones(100)})


def save_jax(path):
    pytest.importorskip("jax")
    from qjax.quantization import checkpoint

    checkpoint.save(path, {"w": np.ones(100, np.float32)})


WRITERS = {
    "text.txt": lambda path: write_text(path, "x" * 100),
    "record.json": lambda path: Record("a model", []).save(path),
    "numpy.safetensors": lambda path: checkpoint.save_file(path, {"w": np.ones(100)}),
    "torch.safetensors": save_torch,
    "jax.safetensors": save_jax,
    "results.json": lambda path: write_results(path, {"rows": [{"a": number} for number in range(100)]}),
    "vectors.csv": lambda path: vectors.write(
        path, vectors.Header("e5m2", "nearest", "float32", None, None, "0"), count=100, seed=0
    ),
    "plot.png": lambda path: draw(["e5m2"], path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_on_a_full_disk_the_earlier_file_stays(tmp_path, name):
    path = tmp_path / name
    path.write_text("earlier", encoding="utf-8")
    path.chmod(0o640)
    with full_disk(), pytest.raises(Exception, match=r"(?i)file too large"):
        WRITERS[name](path)
    assert (os.listdir(tmp_path), path.read_text(encoding="utf-8")) == ([name], "earlier")
    WRITERS[name](path)
    assert (os.listdir(tmp_path), path.stat().st_mode & 0o777) == ([name], 0o640)
    assert path.stat().st_size > 16


def test_a_new_file_has_the_mode_that_others_have(tmp_path):
    write_text(tmp_path / "new", "")
    (tmp_path / "usual").touch()
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("first", "second"):
        write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_text(encoding="utf-8") == text


def test_devices_and_pipes_are_written_themselves(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text(encoding="utf-8")))
    reader.start()
    write_text(tmp_path / "pipe", "text")
    reader.join()
    assert found == ["text"]
    with pytest.raises(OSError, match="No space left"):
        write_text("/dev/full", "x" * 100_000)
    assert Path("/dev/full").is_char_device()


def test_errors_name_the_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"/none/a\.json'$"):
        write_text(tmp_path / "none" / "a.json", "")
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path, "")


def test_whoever_interrupts_leaves_nothing(tmp_path):
    def write():
        with replaced(tmp_path / "a.json") as fresh:
            fresh.write_text("1", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert not os.listdir(tmp_path)


def test_open_files_get_the_content(tmp_path):
    """/dev/stdout of a pipe is a link to a name that no folder has; a file that somebody has open stays itself."""
    program = "import sys; from qcore.files import write_text; print('a', flush=True); write_text(sys.argv[1], 'text')"
    for path in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("a\ntext", "")
        (tmp_path / "out").write_text("earlier\n", encoding="utf-8")
        with (tmp_path / "out").open("a", encoding="utf-8") as out:
            subprocess.run([sys.executable, "-c", program, path], stdout=out, check=True)
            out.write("\nlater")
        assert (tmp_path / "out").read_text(encoding="utf-8") == "earlier\na\ntext\nlater"
    assert os.listdir(tmp_path) == ["out"]


def test_files_that_belong_together_are_all_new_or_all_old(tmp_path):
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    for path in paths:
        path.write_text("earlier", encoding="utf-8")
    with full_disk(), pytest.raises(OSError, match="File too large"):
        write_texts(dict(zip(paths, ("new", "x" * 100), strict=True)))
    assert [path.read_text(encoding="utf-8") for path in paths] == ["earlier", "earlier"]
    assert sorted(os.listdir(tmp_path)) == ["a.csv", "b.csv"]
    write_texts(dict.fromkeys(paths, "new"))
    assert [path.read_text(encoding="utf-8") for path in paths] == ["new", "new"]


def test_what_killed_processes_left_goes_after_an_hour(tmp_path):
    program = """
import os, sys
from qcore.files import replaced
with replaced(sys.argv[1]) as fresh:
    fresh.write_bytes(bytes(100))
    os.kill(os.getpid(), 9)
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, tmp_path / "w.safetensors"])
    mine = tmp_path / ".mine-20814e7d.safetensors"  # a user's
    mine.touch()
    old, young = sorted(name for name in os.listdir(tmp_path) if name.startswith(".w"))
    for name in (old, mine.name):
        os.utime(tmp_path / name, (0, 0))
    write_text(tmp_path / "other.json", "1")
    assert sorted(os.listdir(tmp_path)) == sorted([mine.name, young, "other.json"])


def test_names_of_any_length(tmp_path):
    for name in ("\u00e4" * 120 + ".json", "a" * 250 + ".json"):
        write_text(tmp_path / name, "1")
        assert (tmp_path / name).read_text(encoding="utf-8") == "1"
