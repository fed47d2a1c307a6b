"""Programs made by chance: the same from the same seed, compared, and made smaller; with a framework of one number."""

import subprocess
import sys
from pathlib import Path

import random_programs
from random_programs import ERROR, Part, Summary, Vocabulary, check, draw, run_seeds

VOCABULARY = Vocabulary(
    layers={"add": 0, "double": 0, "twice": 2},
    habits=("shout", "draw"),
    levels=("L0", "mix"),
    tasks=(("statistics", "md5"), ("tensor", "statistics")),
    windows=("step",),
)


class Runner:
    """Computes one number; with the probe, whatever ``fault`` makes of it."""

    vocabulary = VOCABULARY

    def __init__(self, fault=lambda program, value: value):
        self.fault = fault
        self.num_draws = 0

    def run(self, program, directory):
        value = self._run(program.layers, 1) * program.num_steps
        if any(habit.name == "draw" for habit in program.habits):
            self.num_draws += 1
            value += self.num_draws
        if value > 1e9:
            return {ERROR: "too large"}
        return {"value": value if directory is None else self.fault(program, value)}

    def _run(self, layers, value):
        for layer in layers:
            if layer.name == "twice":
                value = self._run(layer.inside * 2, value)
            else:
                value = value + layer.numbers[0] if layer.name == "add" else value * 2
        return value


def names_in(parts):
    return [name for part in parts for name in (part.name, *names_in(part.inside))]


def test_a_seed_gives_the_same_program_again_and_others_give_others():
    programs = [draw(seed, VOCABULARY) for seed in range(200)]
    assert programs == [draw(seed, VOCABULARY) for seed in range(200)]
    assert len({repr(program) for program in programs}) == 200
    assert {name for program in programs for name in names_in(program.layers)} == VOCABULARY.layers.keys()
    assert {program.probe.level for program in programs} == set(VOCABULARY.levels)


def test_a_harmless_probe_is_no_finding_and_programs_that_do_not_repeat_are_none_either():
    summary = Summary()
    assert run_seeds(range(100), Runner(), summary) == []
    assert summary.num_run == 100
    drawing = sum("draw" in names_in(draw(seed, VOCABULARY).habits) for seed in range(100))
    assert 0 < drawing < 100
    assert summary.num_ended_by_errors == 0
    assert summary.num_repeatable == 100 - drawing
    assert "100 programs" in str(summary)


def test_a_fault_is_found_and_made_as_small_as_it_gets():
    def fault(program, value):
        return value + 1 if {"double", "add"} <= set(names_in(program.layers)) else value

    findings = run_seeds(range(60), Runner(fault))
    assert findings
    for finding in findings:
        assert finding.is_repeatable
        assert finding.names == ("value",)
        assert sorted(names_in(finding.program.layers)) == ["add", "double"]
        assert finding.program.habits == ()
        assert finding.program.num_steps == 1
        assert all(number == 0 for layer in finding.program.layers for number in layer.numbers)
        assert f"seed {finding.program.seed}" in str(finding)
        # What is printed can be run again.
        again = eval(repr(finding.program), vars(random_programs))
        assert check(again, Runner(fault)) == finding


def test_inner_parts_take_the_place_of_what_is_around_them():
    def fault(program, value):
        return -value if "double" in names_in(program.layers) else value

    findings = run_seeds(range(40), Runner(fault))
    assert {finding.program.layers for finding in findings} == {(Part("double", (0, 0, 0)),)}


SCRIPT = """
import os, sys
sys.path[:0] = {paths!r}
from random_programs import main
from test_random_programs import Runner
class Dies(Runner):
    def run(self, program, directory):
        if program.seed == 103:
            os._exit(1)
        return super().run(program, directory)
sys.exit(main(Dies()))
"""


def test_a_program_that_ends_its_process_is_a_finding_and_the_next_goes_on(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(paths=[str(Path(__file__).parent), str(Path(random_programs.__file__).parent)]))
    run = subprocess.run([sys.executable, script, "--programs", "250"], capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert "the process ended with 1 at seed 103" in run.stdout
    assert run.stdout.count("programs, ") == 2
    assert "seeds 0 to 249: 1 processes with findings" in run.stdout
