"""Files that are written completely or not at all, also by several writers at the same time."""

import errno
import os
import stat

import pytest

from msprobe_core.errors import StoreError
from msprobe_core.exports.whole_database import whole_database
from msprobe_core.store.atomic_file import whole_file


def write_until_the_disk_is_full(path):
    with whole_file(path) as file:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "result.json"
    with whole_file(path) as first, whole_file(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first"  # which ended last
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]


def test_two_writers_of_one_database_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "trend.db"
    with whole_database(path) as first, whole_database(path) as second:
        for connection in (first, second):
            connection.execute("create table t (a)")
    assert [each.name for each in tmp_path.iterdir()] == ["trend.db"]


@pytest.mark.parametrize("name", ["a" * 255, "层" * 85], ids=["ascii", "three-byte characters"])
def test_a_name_of_the_longest_length_can_be_written(tmp_path, name):
    with whole_file(tmp_path / name) as file:
        file.write(b"content")
    assert (tmp_path / name).read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_failed_write_keeps_the_former_content_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes(b"former")
    with pytest.raises(StoreError, match="cannot be written"):
        write_until_the_disk_is_full(path)
    assert path.read_bytes() == b"former"
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]
