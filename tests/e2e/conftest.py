"""Shared by the end-to-end tests."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture
def close_debugger():
    """End the process's debugger after the test, whatever became of it."""
    from msprobe_core import PrecisionDebugger

    yield
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()
