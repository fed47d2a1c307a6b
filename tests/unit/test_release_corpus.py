"""What a release wrote is read by this one: every command that reads runs, on small runs of every release.

A release adds its directory to ``tests/data/releases`` (tests/support/release_corpus.py) and changes no earlier one.
"""

import importlib.util
from pathlib import Path

import pytest

from msprobe_core import __version__
from msprobe_core.cli import main

RELEASES = sorted((Path(__file__).parents[1] / "data" / "releases").iterdir())

PAIRS = {
    "statistics": "Functional.layer_norm.0.forward in Module.1.LayerNorm.forward.0.",
    "files": "Functional.layer_norm.0.forward.",
    "checksums": "Module.1.LayerNorm.forward.0 in Module.Sequential.forward.0.",
    "arrow": "Functional.layer_norm.0.forward.",
    "debug": "loss.0.debug.",
    "mindspore": "Primitive.layer_norm.LayerNorm.0.forward in Cell.1.LayerNorm.forward.0.",
}
"""By kind of run: the first fault that `compare` names."""
COMMANDS = {
    **{
        f"compare {kind}": (1, f"compare -tp {{r}}/{kind}/target/step0 -gp {{r}}/{kind}/golden/step0 -o {{o}}", first)
        for kind, first in PAIRS.items()
    },
    **{
        f"locate {kind}": (1, f"locate {{r}}/{kind}/target {{r}}/{kind}/golden -o {{o}}", "FAULT")
        for kind in PAIRS
        if kind != "debug"
    },
    "compare frameworks": (1, "compare {cross} -o {o}", "Cell.0.Dense"),
    "view pair": (0, "view {r}/statistics/target {r}/statistics/golden -o {o}", "Page"),
    "view structure": (0, "view {r}/structure/golden -o {o}", "Page"),
    "view monitor": (0, "view {r}/monitor -o {o}", "Page"),
    "graph_visualize": (0, "graph_visualize {pair} -o {o}", "Page"),
    "overflow_check finite": (0, "overflow_check {r}/statistics/golden -o {o}", "Written"),
    "overflow_check": (1, "overflow_check {r}/overflow/golden -o {o}", "Torch.log.0.forward"),
    "acc_check": (0, "acc_check -api_info {r}/shards/golden/step0/*/dump.json -o {o}", "None of 2 checked calls"),
    "run_overflow_check": (0, "run_overflow_check -api_info {r}/files/golden/step0/*/dump.json", "finite: 12"),
    "convert to arrow": (0, "convert {r}/files/golden {o}", "converted 1 dump from json to arrow"),
    "convert to json": (0, "convert {r}/arrow/golden {o} --to json", "converted 1 dump from arrow to json"),
    "identify": (0, "identify {r}/files/golden/step0/*/dump_tensor_data", "Functional.linear.1.forward.output.0.pt"),
    "show": (0, "show {r}/files/golden/step0/*/dump_tensor_data/Functional.linear.0.forward.output.0.pt", "float32"),
    "parse": (0, "parse -d {r}/files/golden/step0 -o {o}", "23 tensors of 1 file"),
    "export": (0, "export {r}/statistics/golden --perfetto -o {o}", "trace.json"),
    "data2db": (0, "data2db --db {o} --data {r}/statistics/golden", "dump_data.trend.db"),
    "gradients": (0, "gradients compare {r}/gradients/golden {r}/gradients/golden -o {o}", "written"),
    "monitor compare": (0, "monitor compare {r}/monitor {r}/monitor", "72 values are equal to the last digit"),
    "monitor to-db": (0, "monitor to-db {r}/monitor -o {o}", "monitor_data.trend.db"),
    "locate by noise": (1, "locate {r}/statistics/target {r}/noise/golden -o {o}", "measured on 2 repetitions"),
    "config_check": (1, "config_check -c {r}/statistics/golden {r}/statistics/target -o {o}", "eps is 0.01 instead of"),
    "rl compare weights": (1, "rl compare weights {r}/verl -o {o}", "down_proj.weight is not synchronised"),
    "rl compare logprob": (0, "rl compare logprob {r}/verl -o {o}", "AGREE"),
    "rl check": (0, "rl check {r}/verl -o {o}", "Checked 12 invariants in step 1"),
    "checkpoint compare": (1, "checkpoint compare {prints}", "reordered: 1"),
    "checkpoint inspect": (0, "checkpoint inspect {r}/shards/golden/step0/*/dump_tensor_data", "Functional.layer_norm"),
}  # fmt: skip
"""By name: exit status, command with the release's directory and that of results, and what is among what it says."""

SIDES = {
    "{pair}": "-tp {r}/statistics/target/step0 -gp {r}/statistics/golden/step0",
    "{prints}": "{r}/checkpoint/target.fingerprint.arrow {r}/checkpoint/golden.fingerprint.arrow",
    "{cross}": "-tp {r}/mindspore/golden/step0 -gp {r}/statistics/golden/step0",
}

REPLAYS = {"acc_check", "run_overflow_check"}
ARROW = {name for name in COMMANDS if "arrow" in name or name == "convert to json"}


def arguments_of(command, release, out):
    """Return the words of a command; a star is the one directory that is there, named after a process."""
    for name, words in SIDES.items():
        command = command.replace(name, words)
    for word in command.split():
        path = word.format(r=release, o=out)
        if "*" in path:
            place, _, rest = path.partition("/*")
            [folder] = Path(place).glob("proc*")
            path = f"{folder}{rest}"
        yield path


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_every_command_reads_what_a_release_wrote(release, name, tmp_path, capsys):
    if name in REPLAYS and importlib.util.find_spec("torch") is None:
        pytest.skip("calls are made again with PyTorch")
    if name in ARROW and importlib.util.find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed")
    status, command, said = COMMANDS[name]
    with pytest.raises(SystemExit) as ended:
        main([*arguments_of(command, release, tmp_path / "out")])
    out, err = capsys.readouterr()
    assert ended.value.code == status, out + err
    assert said in out
    assert "Traceback" not in err


def test_this_release_is_among_them_and_all_are_small():
    assert __version__ in [release.name for release in RELEASES]
    for release in RELEASES:
        assert sum(path.stat().st_size for path in release.rglob("*") if path.is_file()) < 800_000
