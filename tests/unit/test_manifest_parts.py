"""What a manifest holds of environment, libraries and settings, and what it never holds."""

from __future__ import annotations

import json
import struct
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from secret_corpus import HARMLESS, SECRETS

from msprobe_core.fingerprint import hash_rows, ordered_hash, unordered_hash
from msprobe_core.manifest import common_generators, flattened, scalar_of
from msprobe_core.manifest.environment import arguments_of, kept_variables
from msprobe_core.manifest.facts import Device, Library, RunFacts
from msprobe_core.manifest.libraries import build_of, identity_of, installed_libraries, normalised
from msprobe_core.manifest.process import manifest_of
from msprobe_core.manifest.secrets import NOT_KEPT, cleaned

# --- secrets --------------------------------------------------------------------------------------------------------


def test_the_corpus_is_large():
    assert len(SECRETS) >= 60


@pytest.mark.parametrize(("name", "value"), SECRETS, ids=[f"{place}-{name}" for place, (name, _) in enumerate(SECRETS)])
def test_a_secret_is_not_kept(name, value):
    assert cleaned(name, value) == NOT_KEPT


@pytest.mark.parametrize(("name", "value"), HARMLESS.items(), ids=list(HARMLESS))
def test_an_ordinary_setting_is_kept(name, value):
    assert cleaned(name, value) == value


# --- environment ----------------------------------------------------------------------------------------------------


def test_variables_on_the_list_are_kept_by_name():
    given = {
        "NCCL_ALGO": "Ring", "HCCL_DETERMINISTIC": "true", "PYTHONHASHSEED": "0", "CLOSE_MATMUL_K_SHIFT": "1",
        "HOME": "/home/user", "PATH": "/usr/bin", "MY_NOTES": "private", "SSH_AUTH_SOCK": "/tmp/x",
        "NCCL_AUTH_TOKEN": "abc", "VLLM_API_KEY": "def", "TORCH_PROXY": "http://me:word@proxy:80",
    }  # fmt: skip
    assert [(each.name, each.value) for each in kept_variables(given)] == [
        ("CLOSE_MATMUL_K_SHIFT", "1"), ("HCCL_DETERMINISTIC", "true"), ("NCCL_ALGO", "Ring"),
        ("NCCL_AUTH_TOKEN", None), ("PYTHONHASHSEED", "0"), ("TORCH_PROXY", None), ("VLLM_API_KEY", None),
    ]  # fmt: skip


def test_arguments_are_options_and_positions():
    given = [
        "train.yaml",
        "--lr",
        "-1e-4",
        "--bf16",
        "--betas",
        "0.9",
        "0.95",
        "--seed=3",
        "--hub-token",
        "abcdef",
        "-v",
    ]
    assert arguments_of(given) == {
        "0": "train.yaml", "lr": "-1e-4", "bf16": True, "betas": "0.9 0.95", "seed": "3", "hub-token": NOT_KEPT,
        "v": True,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), [("default_worker.py", {}), ("train.py", {"raylet-name": "x"})])
def test_arguments_of_rays_own_worker_are_none_of_the_program(monkeypatch, tmp_path, name, expected):
    program = tmp_path / "ray" / "_private" / "workers" / name
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(program), raising=False)
    monkeypatch.setattr(sys, "argv", [str(program), "--raylet-name=x"])
    run = RunFacts(framework=Library(name="torch", version="2"), device=Device(kind="cpu"))
    found = manifest_of(run, rank=None, libraries=[], settings={})
    assert found.settings.get("program", {}) == expected


# --- libraries ------------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory with packages, the only one on the path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(site, name, version, **files):
    (site / f"{name}-{version}.dist-info").mkdir()
    for file, content in files.items():
        (site / f"{name}-{version}.dist-info" / file.replace("__", ".")).write_text(content)


def test_versions_and_commits_are_found_without_reading_metadata(site):
    install(site, "torch_npu", "2.5.1+git1a2b")
    install(site, "Flash_Attn", "2.7.0", direct_url__json='{"vcs_info": {"vcs": "git", "commit_id": "0123abcd"}}')
    install(site, "verl", "0.9", direct_url__json='{"vcs_info": {"commit_id": "not a commit; rm"}}')
    install(site, "trl", "2.0", direct_url__json="damaged")
    install(site, "my_company_secrets", "1.0")
    (site / "deepspeed-0.16-py3.11.egg-info").mkdir()
    found = {each.name: (each.version, each.git, each.build) for each in installed_libraries()}
    assert found == {
        "deepspeed": ("0.16", None, None), "flash-attn": ("2.7.0", "0123abcd", None), "trl": ("2.0", None, None),
        "torch-npu": ("2.5.1+git1a2b", None, None), "verl": ("0.9", None, None),
    }  # fmt: skip


def test_the_first_on_the_path_counts(tmp_path, monkeypatch):
    for name, version in (("first", "1.0"), ("second", "2.0")):
        (tmp_path / name / f"torch-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "missing"), str(tmp_path / "first"), str(tmp_path / "second")])
    assert [each.version for each in installed_libraries()] == ["1.0"]


def elf(build_id):
    """Return a file with one segment of notes, which holds a build id after another note."""
    notes = struct.pack("<III", 4, 3, 1) + b"GNU\0" + b"abc\0"
    notes += struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(notes), len(notes), 4) + notes


def test_a_module_is_identified_by_what_its_linker_wrote(tmp_path):
    path = tmp_path / "x.so"
    path.write_bytes(elf(bytes.fromhex("0011aabb")))
    assert identity_of(path) == "0011aabb"
    path.write_bytes(b"no library")
    assert identity_of(path) == "10 bytes"
    path.write_bytes(elf(b"1234")[:100])
    assert identity_of(path) == "100 bytes"
    assert identity_of(tmp_path / "missing.so") == "unreadable"


def test_this_interpreters_libraries_have_build_ids():
    root = Path(np.__file__).parents[1]
    assert build_of(root, ["numpy"]) == build_of(root, ["numpy"]) is not None


def test_a_rebuilt_module_changes_the_digest_and_nothing_else_does(site):
    package = site / "vllm"
    (package / "lib").mkdir(parents=True)
    (package / "_C.abi3.so").write_bytes(elf(b"1234"))
    (package / "lib" / "libx.so.1").write_bytes(elf(b"5678"))
    first = build_of(site, ["vllm"])
    (package / "config.json").write_text("{}")
    assert build_of(site, ["vllm"]) == first
    (package / "_C.abi3.so").write_bytes(elf(b"1235"))
    assert build_of(site, ["vllm"]) not in (first, None)
    (site / "alone.cpython-311.so").write_bytes(elf(b"9"))
    assert build_of(site, ["alone"]) is not None
    assert build_of(site, ["missing"]) is None


def test_names_are_normalised():
    assert normalised("Torch_NPU.x--y") == "torch-npu-x-y"


# --- settings -------------------------------------------------------------------------------------------------------


class Mode(Enum):
    FAST = 1


@dataclass
class Inner:
    theta: float = 1e4
    kind: Mode = Mode.FAST
    itself: object = None


@dataclass
class Outer:
    rope: Inner = field(default_factory=Inner)
    act: object = len
    betas: tuple = (0.9, 0.95)
    layers: list = field(default_factory=lambda: [{"a": 1}, {"a": 2}])
    opaque: object = field(default_factory=object)


def test_nested_settings_have_paths():
    outer = Outer()
    outer.rope.itself = outer
    assert flattened(outer, prefix="model") == {
        "model.rope.theta": 1e4, "model.rope.kind": "FAST", "model.act": "builtins.len", "model.betas": "[0.9, 0.95]",
        "model.layers.0.a": 1, "model.layers.1.a": 2,
    }  # fmt: skip
    assert flattened(Namespace(lr=0.1, name=None)) == {"lr": 0.1, "name": None}


def test_scalars_can_be_written_as_json():
    values = [2**70, float("nan"), float("inf"), np.float32(0.5), np.dtype("int8"), "\ud800", "x" * 9999, b"x", {1, 2}]
    for value in (*values, partial(len), Mode.FAST, int, lambda: None):
        is_setting, scalar = scalar_of(value)
        assert isinstance(scalar, bool | int | float | str | None)
        assert is_setting or scalar is None
        assert len(json.dumps(scalar)) < 500
        assert json.loads(json.dumps(scalar).encode("utf-8")) == scalar
    assert scalar_of(np.float32(0.5)) == (True, 0.5)
    assert scalar_of(float("inf")) == (True, "inf")
    assert scalar_of(object()) == (False, None)


class Hostile:
    @property
    def to_dict(self):
        raise RuntimeError("not now")


def test_objects_that_raise_are_left_out():
    assert flattened({"a": 1, "b": Hostile()}) == {"a": 1}


# --- rows and generators --------------------------------------------------------------------------------------------


def test_the_order_of_rows_is_in_one_hash_only():
    rows = np.random.default_rng(0).integers(0, 9, (6, 5))
    hashes, turned = (list(map(int, hash_rows(each).view(np.uint64))) for each in (rows, rows[::-1]))
    assert sorted(hashes) == sorted(turned)
    assert ordered_hash(hashes) != ordered_hash(turned)
    assert unordered_hash(hashes) == unordered_hash(turned)


def test_rows_that_exchange_one_element_are_others():
    rows = np.array([[1, 2], [3, 4]])
    other = np.array([[1, 4], [3, 2]])
    assert unordered_hash(list(hash_rows(rows).view(np.uint64))) != unordered_hash(
        list(hash_rows(other).view(np.uint64))
    )


def test_generators_are_not_advanced():
    import random

    state, numpy_state = random.getstate(), np.random.get_state()
    first = common_generators()
    assert common_generators() == first
    assert random.getstate() == state
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy_state, strict=True))
    random.random()
    try:
        assert common_generators()[0] != first[0]
        assert common_generators()[1] == first[1]
    finally:
        random.setstate(state)
