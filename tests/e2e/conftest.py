"""Shared by the end-to-end tests."""

import sys

import pytest
from forked_python import forked_python


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


@pytest.fixture(scope="session")
def torch_python(tmp_path_factory):
    """Return the path of a ``python`` whose processes have imported PyTorch."""
    with forked_python(tmp_path_factory.mktemp("python"), ["torch._dynamo", "torch.distributed.run"]) as python:
        yield python


@pytest.fixture(scope="session")
def transformers_python(tmp_path_factory):
    """Return the path of a ``python`` whose processes have imported PyTorch and a model of transformers."""
    libraries = ["torch._dynamo", "torch.distributed.run", "transformers.models.llama.modeling_llama"]
    with forked_python(tmp_path_factory.mktemp("python"), libraries) as python:
        yield python


@pytest.fixture
def has_torch_imported(torch_python, monkeypatch):
    """Let programs that a test starts have imported PyTorch."""
    monkeypatch.setattr(sys, "executable", torch_python)


@pytest.fixture
def has_transformers_imported(transformers_python, monkeypatch):
    """Let programs that a test starts have imported PyTorch and transformers."""
    monkeypatch.setattr(sys, "executable", transformers_python)
