"""Scores by the noise of healthy runs: what is measured of repetitions, and what the closed form says without."""

import json
import math

import numpy as np
import polars as pl
import pytest
from row_findings import of_row

from msprobe_core.calibrate import calibrate, find_repeats
from msprobe_core.cli.main import main
from msprobe_core.compare import CompareOptions, compare_dumps
from msprobe_core.errors import CompareError
from msprobe_core.findings import Finding, Level
from msprobe_core.judge.limits import Precision
from msprobe_core.judge.noise import PROFILE_FILE, NoiseModel, load_noise, student
from msprobe_core.judge.noise.measures import MEASURES, Measure
from msprobe_core.judge.noise.repetition_floors import DISTANCE, repetition_floors
from msprobe_core.judge.noise.rounding import with_sizes
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.row_findings import FINDINGS, findings_of
from tests.support.dumps import api, tensor, write_dump

U = 2.0**-8
"""Unit round-off of bfloat16."""

NUM_CALLS = 40


def values(seed, size=(16, 32)):
    return np.random.default_rng(seed).normal(size=size)


def noisy(x, rng, by):
    return x * (1 + by * rng.normal(size=x.shape))


def half(x):
    return tensor(x, dtype="torch.bfloat16")


def run(directory, *, seed=None, by=U, fault=None, experts=None, num_calls=NUM_CALLS, steps=(0,), rank="rank0"):
    """Write a run of calls in a row, each with the noise of one rounding more than the one before it."""
    rng = np.random.default_rng(seed)
    for step in steps:
        data = {}
        given = values(0)
        for i in range(num_calls):
            made = values(i + 1) * (1 if i % 2 else 30)
            if seed is not None:
                made = noisy(made, rng, by * math.sqrt(i + 1))
            if fault is not None:
                made = fault(i, made)
            data[f"Functional.linear.{i}.forward"] = api(half(given), output=half(made))
            given = made
        chosen = experts if experts is not None else [1, 2, 3]
        data["Torch.topk.0.forward"] = api(half(given), output=tensor(chosen, dtype="torch.int64"))
        write_dump(directory / f"step{step}" / rank, data)
    return directory


@pytest.fixture
def golden(tmp_path):
    return run(tmp_path / "golden")


@pytest.fixture
def calibrated(tmp_path, golden):
    calibrate(golden, [run(tmp_path / f"repeat{k}", seed=k) for k in (1, 2, 3)])
    return golden


def judged(target, golden, noise="auto"):
    model = {"auto": load_noise(golden), "closed": NoiseModel(), "off": None}[noise]
    return compare_dumps(target, golden, options=CompareOptions(noise=model)).units[0]


def fault_of(unit):
    assert unit.fault is not None
    return unit.fault


# --- verdicts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [*range(10, 14), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(14, 20))]
)
def test_other_healthy_runs_pass(tmp_path, calibrated, seed):
    unit = judged(run(tmp_path / "target", seed=seed), calibrated)
    assert unit.agrees
    assert (unit.rows["score"] > 0).any()


def test_a_scale_within_the_conventional_limit_is_an_error(tmp_path, calibrated):
    target = run(tmp_path / "target", seed=9, fault=lambda i, x: x * 1.02 if i == 3 else x)
    assert judged(target, calibrated, "off").agrees
    unit = judged(target, calibrated)
    assert fault_of(unit).entry == "Functional.linear.3.forward"
    assert fault_of(unit).parts == ["outputs"]
    row = unit.rows.filter(pl.col("name_target") == "Functional.linear.3.forward.output.0").row(0, named=True)
    assert row["verdict"] == "error"
    assert row["score"] > row["score_limit"] >= 3
    assert row["score_measure"] == "norm"
    assert row["score"] * row["noise_floor"] == pytest.approx(0.02, rel=0.2)
    assert row["limit"] is None
    (found,) = findings_of(row[FINDINGS])
    assert (found.code, found.fields["num_repeats"]) == (RowCode.SCORE, 3)
    assert found.fields["measure"] == "the norm"
    assert found.fields["score"] == row["score"]
    others = unit.rows.filter((pl.col("verdict") == "error") & ~pl.col("name_target").str.contains(r"linear\.[34]\."))
    assert others.height == 0


def test_noise_that_is_over_the_conventional_limit_passes(tmp_path):
    golden = run(tmp_path / "golden")
    calibrate(golden, [run(tmp_path / f"repeat{k}", seed=k, by=0.05) for k in (1, 2, 3)])
    target = run(tmp_path / "target", seed=8, by=0.05)
    assert not judged(target, golden, "off").agrees
    assert judged(target, golden).agrees


def test_evidence_grows_with_the_score(tmp_path, calibrated):
    words = []
    for factor in (1.017, 1.5):
        target = run(tmp_path / f"target{factor}", fault=lambda i, x, f=factor: x * f if i == 3 else x)
        rows = judged(target, calibrated).rows
        (found,) = of_row(rows, "Functional.linear.3.forward.output.0")[1]
        words.append(found.fields["evidence"])
    assert words[1] == "very strong"
    assert words[0] in {"weak", "strong"}


def test_what_repetitions_do_not_have_is_judged_by_the_closed_form(tmp_path, calibrated):
    target = run(tmp_path / "target", num_calls=NUM_CALLS)
    fewer = run(tmp_path / "fewer", num_calls=NUM_CALLS - 5)
    calibrate(calibrated, [fewer])
    unit = judged(target, calibrated)
    assert any("by the closed form, because these do not have them" in note for note in unit.notes)


def test_the_closed_form_also_separates_faults_from_round_off(tmp_path, golden):
    assert judged(run(tmp_path / "healthy", seed=5), golden, "closed").agrees
    target = run(tmp_path / "target", seed=5, fault=lambda i, x: x * 1.3 if i == 30 else x)
    unit = judged(target, golden, "closed")
    assert fault_of(unit).entry == "Functional.linear.30.forward"
    assert fault_of(unit).findings[0][1].code is RowCode.SCORE_CLOSED_FORM


def test_exact_rules_stay(tmp_path, calibrated):
    target = run(tmp_path / "target", fault=lambda i, x: np.where(x == x.max(), np.nan, x) if i == 7 else x)
    unit = judged(target, calibrated)
    assert fault_of(unit).entry == "Functional.linear.7.forward"
    assert fault_of(unit).findings[0][1].code is RowCode.NAN


def test_integers_that_flip_between_repetitions_are_no_error(tmp_path):
    golden = run(tmp_path / "golden")
    repeats = [run(tmp_path / f"repeat{k}", seed=k, experts=[1, 2, 2 + k]) for k in (1, 2, 3)]
    target = run(tmp_path / "target", seed=7, experts=[1, 5, 9])
    name = "Torch.topk.0.forward.output.0"
    calibrate(golden, repeats)
    row = judged(target, golden).rows.filter(pl.col("name_target") == name).row(0, named=True)
    assert row["verdict"] == "pass"
    flips = {"num_flips": 2, "num_repeats": 3}
    assert findings_of(row[FINDINGS]) == [Finding(RowCode.FLIPS, Level.NOTE, flips)]
    calibrate(golden, [run(tmp_path / f"same{k}", seed=k) for k in (1, 2, 3)])
    assert fault_of(judged(target, golden)).entry == "Torch.topk.0.forward"


def test_repetitions_that_are_equal_to_the_bit_leave_a_floor(tmp_path, golden):
    calibrate(golden, [run(tmp_path / f"repeat{k}") for k in (1, 2, 3)])
    unit = judged(run(tmp_path / "target", seed=3, by=U / 2, num_calls=2), golden)
    assert (unit.rows["noise_floor"].drop_nulls() > 0).all()
    rows = unit.rows.filter(pl.col("score").is_not_null() & pl.col("name_target").str.contains("linear"))
    assert rows.height == 4
    assert rows["verdict"].to_list() == ["pass"] * 4


# --- the estimator ------------------------------------------------------------------------------------------------


def rows_of(num_rows):
    return pl.DataFrame(
        {
            "name": [f"Functional.linear.{i}.forward.output.0" for i in range(num_rows)],
            "entry": [f"Functional.linear.{i}.forward" for i in range(num_rows)],
            "phase": "forward",
            "role": "output",
            "precision": 3,
            "roundoff": U,
            "num_rows": 1e6,
            "numel_golden": 10**9,
            "is_state": False,
        }
    )


def errors_of(num_rows, num_repeats, rng, norm=1e-3, distance=0.02):
    sizes = norm * np.exp(0.5 * rng.normal(size=num_rows))
    frames = []
    for _ in range(num_repeats):
        columns = {m.column: pl.Series([None] * num_rows, dtype=pl.Float64) for m in MEASURES}
        columns[DISTANCE] = distance * np.exp(0.05 * rng.normal(size=num_rows))
        columns[Measure.REL_L2.column] = columns[DISTANCE]
        columns[Measure.NORM.column] = np.abs(sizes * rng.normal(size=num_rows))
        frames.append(pl.DataFrame(columns))
    return sizes, frames


def test_moderated_floors_are_nearer_to_the_truth_than_those_of_single_rows():
    sizes, errors = errors_of(2000, 3, np.random.default_rng(0))
    found = repetition_floors(rows_of(2000), errors).floors["norm"].to_numpy()
    own = np.sqrt(np.mean([frame[Measure.NORM.column].to_numpy() ** 2 for frame in errors], axis=0))
    off = [np.sqrt(np.mean(np.log(each / sizes) ** 2)) for each in (found, own)]
    assert off[0] < 0.7 * off[1]
    assert np.median(np.log(found / sizes)) == pytest.approx(0, abs=0.1)


def test_a_limit_is_exceeded_as_often_as_it_says():
    rng = np.random.default_rng(1)
    num_rows = 20_000
    sizes, errors = errors_of(num_rows, 3, rng)
    found = repetition_floors(rows_of(num_rows), errors)
    scores = np.abs(sizes * rng.normal(size=num_rows)) / found.floors["norm"].to_numpy()
    limit = found.nulls[Measure.NORM].limit(1e-3)
    assert 3e-4 < np.mean(scores > limit) < 2e-3


def test_floors_are_never_below_one_rounding():
    _, errors = errors_of(100, 3, np.random.default_rng(2), norm=1e-12, distance=1e-9)
    rows = rows_of(100).with_columns(num_rows=pl.lit(64.0), numel_golden=pl.lit(4096))
    floors = repetition_floors(rows, errors).floors
    assert floors["rel_l2"].min() == pytest.approx(U)
    assert (floors["norm"] >= U / 64).all()


@pytest.mark.parametrize(
    ("probability", "dof", "score"),
    [(0.05, 10, 2.2281), (0.01, 3, 5.8409), (0.001, 30, 3.6460), (0.05, math.inf, 1.9600), (1e-6, 8, 13.2571)],
)
def test_quantiles_are_those_of_tables(probability, dof, score):
    # Abramowitz and Stegun, table 26.10; the last one by numerical integration.
    assert student.limit_of(probability, dof) == pytest.approx(score, rel=1e-4)


def test_gamma_functions_have_their_known_values():
    assert student.digamma(1) == pytest.approx(-0.5772156649, abs=1e-9)
    assert student.trigamma(1) == pytest.approx(math.pi**2 / 6, abs=1e-9)
    assert student.inverse_trigamma(student.trigamma(2.5)) == pytest.approx(2.5, rel=1e-6)


# --- the file and the command -------------------------------------------------------------------------------------


def test_a_profile_of_another_dump_is_not_used(tmp_path, calibrated):
    run(calibrated, fault=lambda i, x: x * 2)
    unit = judged(run(tmp_path / "target", seed=5, fault=lambda i, x: x * 2), calibrated)
    assert any("is of another dump" in note for note in unit.notes)


@pytest.mark.slow
def test_steps_and_ranks_have_floors_of_their_own(tmp_path):
    places = [{"steps": (0, 1), "rank": f"rank{r}"} for r in (0, 1)]
    for name, seed in (("golden", None), ("r1", 1), ("r2", 2), ("r3", 3)):
        for place in places:
            run(tmp_path / name, seed=seed, by=U if place["rank"] == "rank0" else 0.2, **place)
    result = calibrate(tmp_path / "golden", [tmp_path / f"r{k}" for k in (1, 2, 3)])
    assert [dump.label for dump in result.dumps] == ["step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1"]
    for place in places:
        run(tmp_path / "target", seed=9, by=0.2, **place)
    compared = compare_dumps(
        tmp_path / "target", tmp_path / "golden", options=CompareOptions(noise=load_noise(tmp_path / "golden"))
    )
    assert [unit.agrees for unit in compared.units] == [False, True, False, True]


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1 nonsense PAR1", b"\x00" * 4096],
    ids=["empty", "nonsense", "zeros"],
)
def test_a_file_that_is_no_profile_is_refused_with_a_sentence(tmp_path, golden, content):
    (golden / PROFILE_FILE).write_bytes(content)
    with pytest.raises(CompareError, match="is no noise profile"):
        judged(run(tmp_path / "target"), golden)


@pytest.mark.parametrize("about", ["", "{}", '{"version": 99}', "[" * 5000])
def test_a_profile_with_contradictory_metadata_is_refused(tmp_path, calibrated, about):
    path = calibrated / PROFILE_FILE
    pl.read_parquet(path).with_columns(about=pl.lit(about)).write_parquet(path)
    with pytest.raises(CompareError, match="is no noise profile"):
        judged(run(tmp_path / "target"), calibrated)


def test_a_profile_with_other_columns_is_refused(tmp_path, calibrated):
    path = calibrated / PROFILE_FILE
    pl.read_parquet(path).with_columns(norm=pl.lit("x")).write_parquet(path)
    with pytest.raises(CompareError, match="is no noise profile"):
        judged(run(tmp_path / "target"), calibrated)


def test_repetitions_are_found_in_the_golden_run(tmp_path, golden):
    with pytest.raises(CompareError, match="holds no repetitions"):
        find_repeats(golden)
    for k in (1, 2, 10):
        run(golden / "calibration" / f"run{k}", seed=k)
    assert [path.name for path in find_repeats(golden)] == ["run1", "run2", "run10"]


def command(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    return ended.value.code


def test_the_commands_measure_and_compare(tmp_path, golden, capsys):
    for k in (1, 2, 3):
        run(golden / "calibration" / f"run{k}", seed=k)
    assert command("calibrate", golden) == 0
    told = capsys.readouterr().out
    assert f"Noise of 1 dump from 3 repetitions: {NUM_CALLS + 1} calls" in told
    assert "Median distance of torch.bfloat16" in told
    assert (golden / PROFILE_FILE).stat().st_mode & 0o777 == 0o600
    target = run(tmp_path / "target", seed=9, fault=lambda i, x: x * 1.02 if i == 3 else x)
    paths = ("-tp", target, "-gp", golden, "-o", tmp_path / "out")
    assert command("compare", *paths) == 0
    assert command("compare", *paths, "--noise", "auto") == 1
    assert "x what rounding explains" in capsys.readouterr().out
    table = max((tmp_path / "out").rglob("*.csv"))
    header, *lines = table.read_text().splitlines()
    assert "noise_floor,score,score_limit,score_measure" in header
    assert any(",norm," in line for line in lines)
    assert command("compare", *paths, "--noise", "measured") == 1
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["agrees"] is False


def test_the_commands_say_what_is_missing(tmp_path, golden, capsys):
    assert command("calibrate", tmp_path / "nowhere") == 2
    assert command("calibrate", golden) == 2
    assert "holds no repetitions" in capsys.readouterr().err
    assert command("calibrate", golden, golden) == 2
    assert "is the golden run itself" in capsys.readouterr().err
    target = run(tmp_path / "target")
    assert command("compare", "-tp", target, "-gp", golden, "--noise", "measured", "-o", tmp_path / "out") == 2
    assert "there is no noise profile beside it" in capsys.readouterr().err
    run(tmp_path / "other", seed=1, steps=(0,))
    run(golden, steps=(1,))
    assert command("calibrate", golden, tmp_path / "other") == 1
    assert "Not measured: step1 is in" in capsys.readouterr().out


def sizes_of(x):
    """Return the number of rows that count in a tensor."""
    statistics = {"numel": x.size, "norm": np.linalg.norm(x), "max": x.max(), "min": x.min()}
    row = {f"{name}_golden": float(value) for name, value in statistics.items()}
    frame = pl.DataFrame({**row, "shape_golden": str(list(x.shape)), "precision": [int(Precision.BFLOAT16)],
                          "dtype_target": "torch.bfloat16", "dtype_golden": "torch.bfloat16"})  # fmt: skip
    return with_sizes(frame)["num_rows"].item()


def test_rows_of_zeros_do_not_count():
    """As in the gradient of an embedding, which has rows for the tokens of the step alone."""
    x = values(0, (2048, 96))
    assert sizes_of(x) == 2048
    x[16:] = 0
    assert 16 <= sizes_of(x) < 512
    x[:] = 0
    assert sizes_of(x) == 2048
    x[7, 5] = 3.0
    assert sizes_of(x) < 3
    assert sizes_of(x[:32]) == 2  # no vector


def test_usual_tails_count_whole():
    assert sizes_of(np.random.default_rng(0).standard_t(5, size=(256, 64))) == 256
