"""The tutorial on training against rollout is what happens."""

import shutil
import tempfile
from pathlib import Path

import pytest
from tutorial import follow

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.slow
def test_rollout(tmp_path):
    """In a directory with the examples of a clone; two minutes of training are left out of what is measured."""
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    ray_directory = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # the names of sockets have to be short
    try:
        follow("rollout.md", tmp_path, RAY_TMPDIR=str(ray_directory))
    finally:
        shutil.rmtree(ray_directory, ignore_errors=True)
