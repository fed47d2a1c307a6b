"""Where a monitored training departs from a trusted one, measured against noise."""

import json
import math
import random
import shlex

import polars as pl
import pytest
from click.testing import CliRunner
from wording import worded_samples

from msprobe_core.cli import main
from msprobe_core.cli.control import control
from msprobe_core.cli.monitor import monitor
from msprobe_core.monitoring.departure import Basis, compare_monitored
from msprobe_core.monitoring.history import SCHEMA, Monitored
from msprobe_core.monitoring.monitoring_codes import AnomalyCode, DepartureCode

STEPS, AT = 80, 50
LAYERS = tuple(f"layers.{i}.up.weight" for i in range(6))


def run(repetition, change=None, *, ranks=(0, 1), steps=range(STEPS), noise=2e-6):
    """Gradients of a training; repetitions differ by ``noise``, relatively. ``change`` gives other values."""
    rows = []
    for rank in ranks:
        for step in steps:
            for place, name in enumerate(LAYERS):
                value = math.exp(random.Random(f"{rank} {step} {name}").gauss(0, 0.2))
                value *= 1 + noise * random.Random(f"{rank} {step} {name} {repetition}").gauss(0, 1)
                if change is not None:
                    value = change(rank, step, name, value)
                rows.append((rank, "grad_reduced", None, name, None, step, place, value))
    return Monitored(frame=pl.DataFrame(rows, schema={**SCHEMA, "norm": pl.Float64}, orient="row"), statistics=["norm"])


def fault(factor, at=AT):
    def change(rank, step, name, value):
        return value * factor if (rank, name) == (1, LAYERS[4]) and step >= at else value

    return change


@pytest.mark.parametrize("repetitions", [0, 1, 2])
def test_healthy_trainings_agree(repetitions):
    result = compare_monitored(run(0), run(1), [run(2 + i) for i in range(repetitions)])
    assert (result.num_departures, result.departures) == (0, [])
    assert result.first_difference.step == 0
    assert result.num_judged == result.num_shared == 2 * STEPS * len(LAYERS)


@pytest.mark.parametrize("repetitions", [0, 1, 2])
@pytest.mark.parametrize("factor", [1.005, math.nan])
def test_a_difference_far_below_a_per_cent_is_named_if_noise_is_lower(factor, repetitions):
    result = compare_monitored(run(0, fault(factor)), run(1), [run(2 + i) for i in range(repetitions)])
    first = result.departures[0]
    assert (first.step, first.rank, first.place.name) == (AT, 1, LAYERS[4])
    assert first.finding.code == ("departure.apart" if factor == factor else "departure.one-sided")
    assert result.basis is (Basis.REPETITIONS if repetitions else Basis.HISTORY)


def test_with_noise_as_large_as_the_fault_it_is_none():
    own, golden, *others = (run(i, fault(1.005) if i == 0 else None, noise=0.01) for i in range(4))
    assert compare_monitored(own, golden, others).num_departures == 0


def test_what_was_equal_to_the_last_digit_departs_with_any_difference():
    result = compare_monitored(run(0, fault(1 + 1e-6)), run(0))
    first = result.departures[0]
    assert (first.step, first.rank, first.place.name, result.basis) == (AT, 1, LAYERS[4], Basis.EQUALITY)
    assert first.finding.code == "departure.apart-from-equal"


def test_in_the_first_steps_a_per_cent_counts():
    first = compare_monitored(run(0, fault(1.02, at=0)), run(1)).departures[0]
    assert (first.step, first.rank, first.place.name) == (0, 1, LAYERS[4])


def test_what_only_one_of_the_two_has_is_told():
    result = compare_monitored(run(0, ranks=(0, 1, 2)), run(1, steps=range(10, STEPS + 5)))
    said = [(each.code.value, each.fields["side"], each.fields["count"]) for each in result.lacking]
    assert said == [
        ("departure.ranks-of-one", "target", 1),
        ("departure.steps-of-one", "target", 10),
        ("departure.steps-of-one", "golden", 5),
    ]


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    def write(name, own):
        for rank in own.ranks:
            place = tmp_path / name / f"Nov21_05-57-08-rank{rank}-95f81c46"
            place.mkdir(parents=True)
            rows = own.frame.filter(pl.col("rank") == rank).select(
                pl.lit(0).alias("vpp_stage"), "name", "step", "norm", shape=pl.lit("[3]"), dtype=pl.lit("torch.float32")
            )
            rows.write_csv(place / "grad_reduced_0-99.csv")
        return str(tmp_path / name)

    return write


def compare(*arguments):
    with pytest.raises(SystemExit) as end:
        main(["monitor", "compare", *arguments])
    return end.value.code


def test_the_command_names_the_first_departure(files, tmp_path, capsys):
    target, golden, noise = files("t", run(0, fault(1.005))), files("g", run(1)), files("n", run(2))
    assert compare(target, golden, "--noise", noise, "-k", "1", "-o", str(tmp_path / "out")) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"DEPARTED: first grad_reduced of {LAYERS[4]} on rank 1 at step {AT}.")
    assert "the first difference of any size is" in said
    content = json.loads((tmp_path / "out" / "monitor_compare.json").read_text())
    (first,) = content["departures"]
    assert (first["rank"], first["step"], first["name"], content["noise"]) == (1, AT, LAYERS[4], "repetitions")
    assert first["next"]["fields"]["config"] == (
        f'{{"task":"tensor","level":"mix","step":[{AT}],"rank":[1],"tensor":{{"list":[".layers.4.up."]}}}}'
    )


def test_exit_statuses(files, capsys):
    golden = files("g", run(1))
    assert compare(files("same", run(1)), golden) == 0
    assert "EQUAL" in capsys.readouterr().out
    assert compare(files("near", run(0)), golden) == 0
    assert compare(files("other", run(0, steps=range(200, 210))), golden) == 2
    assert "no value of a rank and step in common" in capsys.readouterr().err
    assert compare(golden, "nothing") == 2
    assert "holds nothing of a monitor" in capsys.readouterr().err


def test_the_proposed_command_is_one_that_control_takes(files, tmp_path, capsys):
    target, golden = files("t", run(0, fault(2.0))), files("g", run(1))
    compare(target, golden, "-k", "1", "-o", str(tmp_path / "out"))
    said = capsys.readouterr().out
    command = json.loads((tmp_path / "out" / "monitor_compare.json").read_text())["departures"][0]["next"]["fields"]
    assert command["command"] in said  # on one line, to be copied
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "dump_path": "dump", "dump_enable": False, "tensor": {}}))
    words = shlex.split(command["command"])
    assert words[:3] == ["msprobe", "control", "config.json"]
    done = CliRunner().invoke(control, [str(config), *words[3:]], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    written = json.loads(config.read_text())
    assert (written["task"], written["rank"], written["tensor"]["list"]) == ("tensor", [1], [".layers.4.up."])


def test_each_subcommand_has_help():
    for name in monitor.commands:
        assert CliRunner().invoke(monitor, [name, "--help"]).exit_code == 0


# --- wording ------------------------------------------------------------------------------------------------------

FIELDS = {
    "statistic": "norm", "value": 2.5, "usual": 1.25, "distance": 12.5, "limit": 8.5, "others": 3.0, "steps": 200,
    "other": 1, "percent": 8.25, "until": 44, "target": 1.5, "golden": 1.0, "relative": 33.3, "allowed": 0.001,
    "quantity": "grad_reduced", "name": "up.weight", "rank": 1, "step": 3, "side": "target", "count": 2, "first": 4,
    "last": 9,
}  # fmt: skip


def test_wording(wording_snapshot):
    said = [worded_samples(codes, dict.fromkeys(codes, FIELDS)) for codes in (AnomalyCode, DepartureCode)]
    wording_snapshot.check("monitor", *said)
