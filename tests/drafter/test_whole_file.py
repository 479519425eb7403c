"""A file is there whole or as it was before."""

import pytest

from tlt_engine.drafter.whole_file import sweep, write_whole


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path):
    file = tmp_path / "made" / "file"
    write_whole(file, lambda opened: opened.write(b"whole"))

    def fail(opened):
        opened.write(b"half")
        opened.flush()
        assert file.read_bytes() == b"whole", "a reader sees the old file while the new one is written"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_whole(file, fail)
    assert [path.name for path in file.parent.iterdir()] == ["file"]
    assert file.read_bytes() == b"whole"


def test_what_a_killed_writer_left_is_swept_up_and_nothing_else(tmp_path):
    def is_left_behind(opened):
        (tmp_path / "copy").write_text(opened.name)

    write_whole(tmp_path / "file", is_left_behind)
    partial = tmp_path / (tmp_path / "copy").read_text().rpartition("/")[2]
    partial.write_bytes(b"half")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "file"]
