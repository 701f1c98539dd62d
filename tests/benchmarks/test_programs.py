"""A cache that cannot be written costs time, never results."""

import jax

from benchmarks.support.programs import keep_programs


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path, capsys):
    before = jax.config.jax_compilation_cache_dir
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QTORCH_CACHE_DIR", str(tmp_path / "file"))
    keep_programs()
    said = capsys.readouterr().err
    assert f"compiled programs cannot be kept in {tmp_path / 'file' / 'jax'} (" in said
    assert "QTORCH_CACHE_DIR names another folder" in said
    assert jax.config.jax_compilation_cache_dir == before
    keep_programs(quiet=True)
    assert not capsys.readouterr().err
