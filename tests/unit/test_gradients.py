"""Similarity of two trainings' gradients: by recorded signs, by sketches, and what counts as a problem."""

import csv
import json
import math

import numpy as np
import pytest

from msprobe_core.cli.main import main
from msprobe_core.errors import CompareError
from msprobe_core.fingerprint.arrays import NumpyArrays
from msprobe_core.fingerprint.sketch import Sketcher
from msprobe_core.gradients.compare import compare_gradients
from msprobe_core.gradients.probe import intervals
from msprobe_core.gradients.similarity import Agreement, Basis, GradientComparison
from msprobe_core.gradients.sketched import Cosine, agreement_of, cosine


def write_signs(directory, gradients, *, counts=True, rank="rank0", step="step0"):
    (directory / rank / step).mkdir(parents=True)
    (directory / rank / "counted" / step).mkdir(parents=True)
    for name, values in gradients.items():
        np.save(directory / rank / step / f"{name}.npy", values > 0)
        if counts:
            level = 2.0**-8 * np.sqrt((values**2).mean())
            np.save(directory / rank / "counted" / step / f"{name}.npy", np.packbits(np.abs(values) > level))
    return directory


def exit_of(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def some(seed, size=1000):
    return np.random.default_rng(seed).standard_normal(size)


def test_the_layer_nearest_to_the_loss_is_first(tmp_path):
    gradients = {f"layers.{i}.weight": some(i) for i in range(12)}
    flipped = gradients | {f"layers.{i}.weight": -gradients[f"layers.{i}.weight"] for i in (3, 10)}
    result = compare_gradients(write_signs(tmp_path / "b", flipped), write_signs(tmp_path / "a", gradients))
    assert [each.agreement.layer for each in result.problems] == ["layers.10", "layers.3"]
    assert result.problems[0].agreement.similarity == 0
    assert result.summary(0) == {0: pytest.approx(10 / 12)}
    assert len(result.published_problems) == 2


def test_signs_below_rounding_do_not_count(tmp_path):
    values = np.concatenate([some(1, 100), 1e-6 * some(2, 900)])
    other = np.concatenate([values[:100], 1e-6 * some(3, 900)])
    result = compare_gradients(write_signs(tmp_path / "b", {"w": other}), write_signs(tmp_path / "a", {"w": values}))
    (found,) = result.agreements
    assert 90 <= found.num_counted <= 100
    assert found.counted_similarity == 1
    assert found.similarity < 0.6
    assert result.published_problems
    assert not result.problems


def test_zeros_do_not_hide_a_wrong_sign(tmp_path):
    values = np.concatenate([some(1, 100), np.zeros(9900)])
    result = compare_gradients(
        write_signs(tmp_path / "b", {"embedding": -values}), write_signs(tmp_path / "a", {"embedding": values})
    )
    assert result.agreements[0].similarity == 0.99
    assert not result.published_problems
    assert [each.agreement.parameter for each in result.problems] == ["embedding"]


@pytest.mark.parametrize("layout", [("rank_3", "step_0"), ("rank3", "step0")], ids=["older", "newer"])
def test_files_of_older_tools_are_compared_by_all_elements(tmp_path, layout):
    rank, step = layout
    for name, seed in (("a", 1), ("b", 2)):
        write_signs(tmp_path / name, {"w": some(seed)}, counts=False, rank=rank, step=step)
    result = compare_gradients(tmp_path / "b", tmp_path / "a")
    assert result.ranks == [3]
    assert result.agreements[0].num_counted == 1000
    assert abs(result.agreements[0].similarity - 0.5) < 0.06
    assert [each.code.value for each in result.lacking] == ["gradients.all-count"]


def agreement(step, num_differing, num_elements):
    share = 1 - num_differing / num_elements
    return Agreement(
        rank=0, step=step, parameter="w", position=0, num_elements=num_elements, similarity=share,
        num_counted=num_elements, counted_similarity=share,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("num_differing", "num_elements", "is_problem"),
    [
        (0, 10, False),
        (1, 4, False),
        (1, 1, False),
        (3, 3, True),
        (31, 1000, False),
        (80, 1000, True),
        (3400, 10**5, True),
    ],
)
def test_chance_is_no_problem(num_differing, num_elements, is_problem):
    result = GradientComparison(basis=Basis.SIGNS, agreements=[agreement(0, num_differing, num_elements)])
    assert bool(result.problems) == is_problem


def test_a_drop_is_a_problem_in_its_step():
    agreements = [agreement(step, differing, 10_000) for step, differing in enumerate((0, 200, 400, 900, 900))]
    result = GradientComparison(basis=Basis.SIGNS, agreements=agreements)
    assert [each.agreement.step for each in result.problems] == [3]
    assert result.problems[0].finding.code.value == "gradients.drops"


@pytest.mark.parametrize("angle", [0.0, 0.05, 0.5, 1.5, 2.5, math.pi], ids=str)
def test_cosines_from_sketches_are_within_their_error(angle):
    sketcher = Sketcher(NumpyArrays())
    errors = []
    for seed in range(20):
        one, another = some(seed, 5000).astype(np.float32), some(100 + seed, 5000).astype(np.float32)
        other = (math.cos(angle) * one + math.sin(angle) * another).astype(np.float32)
        exact = float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
        sketches = [np.asarray(sketcher.sketch(each), "<f4").tobytes() for each in (one, other)]
        found = cosine(*sketches, float(np.linalg.norm(one)), float(np.linalg.norm(other)))
        errors.append((found.value - exact) / (found.error + 1e-6))
        similarity, error = agreement_of(found)
        assert abs(similarity - ((one > 0) == (other > 0)).mean()) < 4 * error + 0.03
    assert max(map(abs, errors)) < 5
    assert np.sqrt(np.mean(np.square(errors))) < 1.7


def test_zero_gradients_agree():
    zeros = bytes(256)
    assert cosine(zeros, zeros, 0.0, 0.0) == Cosine(1.0, 0.0)
    assert cosine(zeros, b"\0\0\x80\x3f" * 64, 0.0, 8.0) == Cosine(0.0, 0.0)


def test_intervals_are_named_as_published():
    assert intervals((-1, 0, 1)) == ["(-inf, -1]", "(-1, 0]", "(0, 1]", "(1, inf)"]


def test_results_have_the_published_form(tmp_path, capsys):
    for name, sign in (("a", 1), ("b", -1)):
        for step in (0, 1):
            write_signs(tmp_path / name, {"w": sign * some(step), "=v": some(9, 1)}, step=f"step{step}")
    code = exit_of(["gradients", "compare", str(tmp_path / "b"), str(tmp_path / "a"), "-o", str(tmp_path / "out")])
    assert code == 1
    assert "DIFFERENT: first in layer w, step 0, rank 0." in capsys.readouterr().out
    rows = list(csv.reader((tmp_path / "out/rank0/similarities.csv").read_text().splitlines()))
    assert rows[0] == ["step", "0", "1"]
    assert [row[0] for row in rows[1:]] == ["'=v", "w", "summary"]
    assert float(rows[3][1]) == pytest.approx(1 / 1001)
    assert json.loads((tmp_path / "out/gradients_compare.json").read_text())["first"]["parameter"] == "w"
    assert (tmp_path / "out/rank0/similarities_picture/summary_similarities.svg").read_text().startswith("<svg")


def test_equal_gradients_are_exit_0_and_none_exit_2(tmp_path):
    write_signs(tmp_path / "a", {"w": some(1)})
    arguments = ["gradients", "compare", str(tmp_path / "a")]
    assert exit_of([*arguments, str(tmp_path / "a"), "-o", str(tmp_path / "out")]) == 0
    (tmp_path / "empty").mkdir()
    assert exit_of([*arguments, str(tmp_path / "empty"), "-o", str(tmp_path / "out")]) == 2
    (tmp_path / "out/gradients_compare.json").write_text("{}")
    assert exit_of([*arguments, str(tmp_path / "a"), "-o", str(tmp_path / "out")]) == 2


def test_a_damaged_file_is_named_and_the_rest_compared(tmp_path):
    for name in ("a", "b"):
        write_signs(tmp_path / name, {"v": some(1), "w": some(2)})
    (tmp_path / "b/rank0/step0/v.npy").write_bytes(b"\x93NUMPY\1\0\xff\xff")
    result = compare_gradients(tmp_path / "b", tmp_path / "a")
    assert [each.parameter for each in result.agreements] == ["w"]
    assert "v.npy" in result.lacking[0].text
    (tmp_path / "b/rank0/step0/w.npy").unlink()
    with pytest.raises(CompareError, match="no gradient in common"):
        compare_gradients(tmp_path / "b", tmp_path / "a")


@pytest.mark.parametrize("defect", ["missing", "smaller", "unreadable"])
def test_gradients_that_agree_but_for_one_that_cannot_be_compared_are_undecided(tmp_path, capsys, defect):
    for name in ("a", "b"):
        write_signs(tmp_path / name, {"v": some(1), "w": some(2)})
    path = tmp_path / "b/rank0/step0/v.npy"
    if defect == "missing":
        path.unlink()
    elif defect == "smaller":
        np.save(path, np.load(path)[:-1])
    else:
        path.write_bytes(b"\x93NUMPY\1\0\xff\xff")
    arguments = ["gradients", "compare", str(tmp_path / "b"), str(tmp_path / "a"), "-o", str(tmp_path / "out")]
    assert exit_of(arguments) == 2
    assert "UNDECIDED: 1 gradients agree, and others cannot be compared." in capsys.readouterr().out


def write_norms(directory, steps, *, rank="rank0", checksums=None):
    (directory / rank).mkdir(parents=True, exist_ok=True)
    for step, norms in enumerate(steps):
        lines = ["param_name,MD5,max,min,norm,shape"]
        lines += [f'{name},{(checksums or {}).get(name, "")},1,-1,{norm},"[16, 8]"' for name, norm in norms.items()]
        (directory / rank / f"grad_summary_{step}.csv").write_text("\n".join(lines) + "\n")
    return directory


def test_norms_are_compared_where_there_are_no_signs(tmp_path, capsys):
    golden = [{"layers.0.w": 1.0, "layers.1.w": 2.0, "layers.2.w": 3.0}] * 3
    target = [golden[0], golden[0] | {"layers.1.w": 2.1}, golden[0] | {"layers.1.w": 2.4, "layers.0.w": 1.5}]
    write_norms(tmp_path / "a", golden)
    write_norms(tmp_path / "b", target)
    found = compare_gradients(tmp_path / "b", tmp_path / "a")
    assert found.basis is Basis.NORMS
    assert [(each.agreement.step, each.agreement.parameter) for each in found.problems] == [
        (2, "layers.1.w"), (2, "layers.0.w"),
    ]  # fmt: skip
    assert found.problems[0].finding.code.value == "gradients.norm-drifts"
    assert "1.2 times that of the golden one, after 1.05 times" in found.problems[0].finding.text
    code = exit_of(["gradients", "compare", str(tmp_path / "b"), str(tmp_path / "a"), "-o", str(tmp_path / "out")])
    assert code == 1
    assert "layers.0.w has 1.5 times the golden norm in step 2, the worst" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "out/rank0/gradients.csv").read_text().splitlines()))
    assert [row["norm_ratio"] for row in rows if row["problem"] == "true"] == ["1.5", "1.2"]
    assert not (tmp_path / "out/rank0/similarities.csv").exists()


@pytest.mark.parametrize(
    ("own", "other", "is_problem"),
    [(1.0, 1.09, False), (1.0, 1.2, True), (0.0, 0.0, False), (1.0, 0.0, True), ("nan", "nan", False),
     ("nan", 1.0, True), ("inf", "inf", False), (1.0, "", True), ("", "", False)],
)  # fmt: skip
def test_which_norms_differ(tmp_path, own, other, is_problem):
    found = compare_gradients(write_norms(tmp_path / "b", [{"w": own}]), write_norms(tmp_path / "a", [{"w": other}]))
    assert bool(found.problems) == is_problem


def test_equal_checksums_and_other_shapes_and_broken_tables(tmp_path):
    golden = write_norms(tmp_path / "a", [{"w": "nan"}] * 2, checksums={"w": "ab"})
    target = write_norms(tmp_path / "b", [{"w": 1.0}] * 2, checksums={"w": "ab"})
    assert [each.norm_ratio for each in compare_gradients(target, golden).agreements] == [1.0, 1.0]
    (target / "rank0/grad_summary_0.csv").write_text("param_name,norm,shape\nw,one,[2]\n")
    found = compare_gradients(target, golden)
    assert [each.step for each in found.agreements] == [1]
    assert "grad_summary_0.csv: line 2 has the norm 'one', which is no number" in found.lacking[1].text
    for step in (0, 1):
        (target / f"rank0/grad_summary_{step}.csv").write_text('param_name,norm,shape\nw,1,"[2, 3]"\n')
    with pytest.raises(CompareError, match="has 6 elements in one training and 128 in the other"):
        compare_gradients(target, golden)


def test_signs_against_norms_are_compared_by_norms(tmp_path):
    write_signs(tmp_path / "b", {"w": some(1, 128)})
    write_norms(tmp_path / "b", [{"w": 2.0}])
    found = compare_gradients(tmp_path / "b", write_norms(tmp_path / "a", [{"w": 1.0}]))
    assert found.basis is Basis.NORMS
    assert [each.norm_ratio for each in found.agreements] == [2.0]
