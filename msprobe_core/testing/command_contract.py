"""The contracts of commands and of trainers' stages, as tests that each inherits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from msprobe_core.config.stages import check_stage_config
from msprobe_core.protocols.trainers import TrainerStages

if TYPE_CHECKING:
    import click

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def _help_of(option: click.Parameter) -> str | None:
    return getattr(option, "help", None)


class CommandContract:
    """Inherit this class and define the fixture ``command``."""

    @pytest.fixture
    def command(self) -> click.Command:
        """Return the offer under test."""
        raise NotImplementedError("a class that inherits CommandContract defines the fixture 'command'")

    def test_it_can_be_typed(self, command: click.Command) -> None:
        """Its name has no spaces or capitals."""
        assert command.name is not None
        assert _NAME.fullmatch(command.name), f"{command.name!r} is not easily typed"

    def test_it_has_help(self, command: click.Command) -> None:
        """``--help`` says what it does, and what every option is for."""
        from click.testing import CliRunner

        result = CliRunner().invoke(command, ["--help"])
        assert result.exit_code == 0, result.output
        assert command.get_short_help_str(), "it has no docstring"
        undocumented = [each.name for each in command.params if each.param_type_name == "option" and not _help_of(each)]
        assert undocumented == [], "options without help"

    def test_an_unknown_option_is_refused(self, command: click.Command) -> None:
        """With status 2, as by all commands."""
        from click.testing import CliRunner

        result = CliRunner().invoke(command, ["--no-such-option-of-any-command"])
        assert result.exit_code == 2, result.output


class StagesContract:
    """Inherit this class and define the fixture ``stages``."""

    @pytest.fixture
    def stages(self) -> TrainerStages:
        """Return the offer under test."""
        raise NotImplementedError("a class that inherits StagesContract defines the fixture 'stages'")

    def test_stages_are_described(self, stages: TrainerStages) -> None:
        """Each has a sentence, which `msprobe` shows."""
        assert stages.name.strip()
        assert stages.stages
        assert [name for name, text in stages.stages.items() if not text.strip()] == []

    def test_names_are_directories(self, stages: TrainerStages, tmp_path: Path) -> None:
        """A stage's name is a directory of the run."""
        for name in stages.stages:
            (tmp_path / name).mkdir()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stages.stages)

    def test_a_configuration_may_name_each(self, stages: TrainerStages, tmp_path: Path) -> None:
        """And is refused if it names another one."""
        known = list(stages.stages)
        fields = json.loads(json.dumps({"out": str(tmp_path), "stages": known}))
        config = check_stage_config(fields, "config.yaml", known)
        assert list(config.stages) == known
