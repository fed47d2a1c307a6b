"""Symbolic links inside of an output place lead to files of others: nothing is written or deleted through them."""

import logging

import numpy as np
import pytest
from dumps import api, tensor, write_dump
from numpy_layers import Network, train_step
from numpy_rig import ArrayDebugger

from msprobe_core.cli.main import main
from msprobe_core.errors import StoreError
from msprobe_core.store.layout import make_directory

END = {"state": "complete", "calls": 1, "windows": 1}


def files_of(place):
    return {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def moved(place, to):
    """Move a directory away and leave a link to it."""
    place.rename(to)
    place.symlink_to(to)
    return files_of(to)


@pytest.fixture
def train():
    """Return a function that trains one recorded step and returns what the weights are then."""

    def train(run, **settings):
        debugger = ArrayDebugger(dump_path=str(run), task="tensor", level="mix", **settings)
        model = Network(0)
        try:
            debugger.start(model)
            train_step(model)
            debugger.stop()
            debugger.step()
        finally:
            debugger.close()
        return [p.values.tobytes() for _, layer in model.named_layers() for p in layer.parameters.values()]

    return train


@pytest.mark.parametrize("writer", ["json", "arrow"])
@pytest.mark.parametrize("link", ["step0", "step0/*", "step0/*/dump_tensor_data"])
def test_a_recording_is_not_written_through_a_link(train, tmp_path, caplog, link, writer):
    run, theirs = tmp_path / "run", tmp_path / "theirs"
    bare = train(run, writer=writer)
    (place,) = run.glob(link)
    before = moved(place, theirs)
    assert before
    with caplog.at_level(logging.ERROR):
        assert train(run, writer=writer) == bare
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith(f"recording ends at step 0, training goes on: {place}: is a symbolic link")
    assert files_of(theirs) == before


def test_links_in_the_path_that_the_user_gives_are_followed(train, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    train(tmp_path / "link" / "run")
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    train(tmp_path / "run")
    assert len(list((tmp_path / "disk").rglob("dump.json"))) == 2


def test_a_directory_of_links_to_itself_ends(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "a")
    with pytest.raises(StoreError, match="is a symbolic link"):
        make_directory(tmp_path / "a" / "b", below=tmp_path)


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Run a command line beside two runs of two steps; return exit code and all that it has said."""
    monkeypatch.chdir(tmp_path)
    names = ("target", "golden", "golden/calibration/run1", "golden/calibration/run2")
    for i, name in enumerate(names):
        for step in (0, 1):
            call = {"Torch.mul.0.forward": api(tensor(np.ones((2, 3))), output=tensor(np.full((2, 3), 2 + i * 1e-7)))}
            write_dump(tmp_path / name / f"step{step}" / "rank0", call, end=END)

    def run(line):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        return ended.value.code, " ".join("".join(capsys.readouterr()).split())

    return run


@pytest.mark.parametrize(
    ("line", "link"),
    [
        ("compare -tp target -gp golden -o out", "out/step0"),
        ("compare -tp target -gp golden -o out --resume", "out/.units"),
        ("calibrate golden -o out/noise.parquet", "out/.noise_profile"),
        ("export target golden -o out --model-explorer", "out/model_explorer"),
        ("export target golden -o out --perfetto", "out/perfetto"),
        ("export target golden -o out --tensorboard", "out/tensorboard"),
        ("export target golden -o out --tensorboard", "out/tensorboard/target_rank0"),
        ("convert target out --to arrow --overwrite", "out"),
    ],
)
def test_results_are_not_written_through_a_link(run, tmp_path, line, link):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "graphs.json").write_text("precious")
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(theirs)
    code, said = run(line)
    assert code == 2
    assert f"{link}: is a symbolic link" in said
    assert files_of(theirs) == {theirs.joinpath("graphs.json").relative_to(theirs): b"precious"}


def test_a_repetition_is_not_recorded_through_a_link(run, tmp_path):
    place = tmp_path / "golden" / "calibration" / "run1"
    before = moved(place, tmp_path / "theirs")
    code, said = run("calibrate golden --run true -k 1")
    assert code == 2
    assert "is a symbolic link" in said
    assert files_of(tmp_path / "theirs") == before
