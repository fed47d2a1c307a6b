"""A release: two builds are equal to the bit, and what is installed from it works by itself."""

import hashlib
import json
import os
import re
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
LOCK = json.loads((REPOSITORY / "view_page" / "package-lock.json").read_text())["packages"]

pytestmark = pytest.mark.slow


def run(*command, cwd=REPOSITORY, **environment):
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Build the working tree, as far as git knows its files; returns the directory."""
    commit = run("git", "stash", "create").strip() or "HEAD"

    def build(**environment):
        out = tmp_path_factory.mktemp("dist")
        run(sys.executable, "-m", "release.build", "--out", out, "--commit", commit, **environment)
        return out

    return build


@pytest.fixture(scope="module")
def dist(build):
    return build()


def test_two_builds_are_equal_to_the_bit(build, dist):
    again = build(TZ="Asia/Tokyo", TMPDIR=str(REPOSITORY.parent), PYTHONHASHSEED="7")
    sums = (dist / "SHA256SUMS").read_text()
    assert (again / "SHA256SUMS").read_text() == sums
    assert {line.split("  ")[1]: line.split("  ")[0] for line in sums.splitlines()} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in again.iterdir()
        if path.name != "SHA256SUMS"
    }
    names = [path.name for path in dist.iterdir()]
    assert sum(name.endswith(".tar.gz") for name in names) == 4
    assert sum(name.endswith("-py3-none-any.whl") for name in names) == 4
    assert sum("manylinux" in name for name in names) == 1


def test_the_bill_of_materials_names_everything_with_its_licence(dist):
    [path] = dist.glob("*.cdx.json")
    content = json.loads(path.read_text())
    assert (content["bomFormat"], content["specVersion"]) == ("CycloneDX", "1.5")
    components = {each["bom-ref"]: each for each in content["components"]}
    assert len(components) == len(content["components"])
    referred = [ref for each in content["dependencies"] for ref in (each["ref"], *each["dependsOn"])]
    assert {*referred} == components.keys() | {"msprobe"}
    files = {
        each["name"]: each["hashes"][0]["content"] for own in components.values() for each in own.get("components", ())
    }
    built = [path for path in dist.iterdir() if path.suffix in {".whl", ".gz"}]
    assert files == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in built}
    licences = {
        each["name"]: (each["version"], each["licenses"][0]["license"]["id"])
        for ref, each in components.items()
        if ref.startswith("pkg:npm/")
    }
    packages = {path.rpartition("node_modules/")[2]: entry for path, entry in LOCK.items() if path}
    assert {"react", "uplot", "@xyflow/react"} <= licences.keys()
    assert licences == {name: (packages[name]["version"], packages[name]["license"]) for name in licences}


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    """Everything that this environment has besides packages of ours, for environments that are made here."""
    layer = tmp_path_factory.mktemp("layer")
    for place in [path for path in (*site.getsitepackages(), *sys.path) if path.endswith("site-packages")]:
        for entry in Path(place).iterdir():
            is_ours = re.match(r"(__editable__.*)?msprobe", entry.name) or entry.suffix == ".pth"
            if not is_ours and not (layer / entry.name).exists():
                (layer / entry.name).symlink_to(entry)
    return layer


@pytest.mark.parametrize("kind", ["manylinux", "none-any"], ids=["with kernels", "without"])
def test_what_is_installed_from_it_works_by_itself(dist, layer, tmp_path, kind):
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    [packages] = (environment / "lib").glob("python*/site-packages")
    (packages / "layer.pth").write_text(f"{layer}\n")
    wheels = [*dist.glob(f"msprobe_core-*{kind}*.whl"), *dist.glob("msprobe_[mpv]*-none-any.whl")]
    clean = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", *wheels, **clean)
    checked = subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "check"],
        capture_output=True,
        text=True,
        env=os.environ | clean,
    )
    assert "msprobe" not in checked.stdout, checked.stdout

    (tmp_path / "place").mkdir()
    program = environment / "bin" / "msprobe"
    said = run(program, "demo", "--no-browser", "--framework", "pytorch", cwd=tmp_path / "place", **clean)
    assert "Functional.layer_norm.2.forward" in said
    assert str(REPOSITORY) not in said
    done = subprocess.run(
        [program, "doctor", "--json"], cwd=tmp_path, env=os.environ | clean, capture_output=True, text=True
    )
    found = [each for each in json.loads(done.stdout)["conditions"] if each["health"] != "ok"]
    assert [each for each in found if each["health"] != "note"] == []
    assert any(each["code"] == "machine.kernels" for each in found) == (kind == "none-any")
    assert done.returncode == 0
