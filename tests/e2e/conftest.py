"""Shared by the end-to-end tests."""

import pytest


@pytest.fixture
def close_debugger():
    """End the process's debugger after the test, whatever became of it."""
    from msprobe_core import PrecisionDebugger

    yield
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Change into an empty directory; beside it is `scratch`, which must be empty at the end."""
    (tmp_path / "work").mkdir()
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COLUMNS", "120")
    yield tmp_path
    assert list((tmp_path / "scratch").iterdir()) == []
