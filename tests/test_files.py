"""Files are written whole or not at all."""

import errno
import json
import math
import os

import pytest

from aquamam.files import finite, write_bytes, write_json, write_text


def test_a_file_is_replaced_readable_for_all_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "new" / "a[1].txt"
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".a[1].txt.x1.tmp").write_text("of a write that a kill cut short")
    for text in ("old", "new, Ä"):
        assert write_text(path, text) == path
        assert path.read_text(encoding="utf-8") == text
    assert path.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_says_why_and_leaves_the_old_file(tmp_path, monkeypatch, step):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = write_bytes(tmp_path / "a.bin", b"old")
    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("finished", [True, False])
def test_two_writers_of_one_file_both_succeed(tmp_path, monkeypatch, finished):
    path, replace = tmp_path / "a.bin", os.replace

    def meanwhile(temporary, target):
        """The other one, which takes what this one has written so far for a leftover, may be half way itself."""
        monkeypatch.setattr(os, "replace", replace)
        write_bytes(path, b"same")
        if not finished:
            path.unlink()
        replace(temporary, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    write_bytes(path, b"same")
    assert path.read_bytes() == b"same"


def test_json_has_null_where_numbers_are_not_finite(tmp_path):
    value = {"a": [1.0, math.nan, (math.inf, "x")], "b": {"c": -math.inf, "d": None}}
    assert finite(value) == {"a": [1.0, None, [None, "x"]], "b": {"c": None, "d": None}}
    assert json.loads(write_json(tmp_path / "a.json", value).read_text()) == finite(value)
