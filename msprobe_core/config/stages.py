"""The configuration of a trainer whose steps have stages: one file, checked as strictly as every configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe_core.config.load import check_config, without_comments
from msprobe_core.config.ranges import parse_ranges
from msprobe_core.config.schema import Config, JsonObject
from msprobe_core.config.text import given_path
from msprobe_core.errors import ConfigError, ConflictingSettingsError, UnknownFieldError

_ELSEWHERE = {"dump_path": "out", "step": "steps", "rank": "ranks", "load": None, "perturb": None}
"""Settings of a debugger that have another name for a trainer with stages, or do not apply to it."""

_OWN = ("out", "steps", "ranks", "stages", "per_stage", "strict")


@dataclass(frozen=True)
class StageConfig:
    """A checked file.

    Attributes:
        out: Directory of the run; each stage has a directory in it.
        steps: The trainer's steps that are recorded; empty for all.
        ranks: Ranks that are recorded; empty for all.
        stages: Names of the stages that are recorded.
        configs: The configuration of each of them.
        strict: Whether a recording failure ends the training, instead of being a warning.
        known: Names of all stages that the trainer's plugin has registered; empty if that is not known.
    """

    out: Path
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    stages: tuple[str, ...]
    configs: Mapping[str, Config]
    strict: bool = False
    known: tuple[str, ...] = ()

    def refuse_unknown(self, stage: str) -> None:
        """Raise if a stage is none of those that are registered, so that nothing of it can ever be recorded.

        Raises:
            ConfigError: it is not.
        """
        if self.known and stage not in self.known:
            raise ConfigError(
                f"there is no stage {stage!r}; the trainer's plugin has registered {', '.join(self.known)}: correct "
                "the name, or add it to msprobe_register_stages"
            )

    def selects(self, stage: str, step: int, rank: int) -> bool:
        """Whether this rank records this stage of this step."""
        is_step = not self.steps or step in self.steps
        return stage in self.stages and is_step and (not self.ranks or rank in self.ranks)


def check_stage_config(
    fields: JsonObject, where: str, known: Sequence[str], further: Collection[str] = ()
) -> StageConfig:
    """Return the configuration in a file with the content ``fields``.

    Args:
        fields: Decoded content, without the fields that the trainer's plugin reads itself.
        where: Name of the file in messages.
        known: Names of the trainer's stages.
        further: Fields that the plugin reads itself, for messages.

    Raises:
        ConfigError: a field or a stage is unknown, or a value is invalid.
    """
    fields = without_comments(fields)
    for name, other in _ELSEWHERE.items():
        if name in fields:
            advice = f"; use {other!r}" if other else " to a trainer with stages"
            raise ConflictingSettingsError(f"{where}: {name!r} does not apply{advice}")
    own = {name: fields[name] for name in _OWN if fields.get(name) is not None}
    rest = {name: value for name, value in fields.items() if name not in _OWN}
    _check_names(rest, where, [*_OWN, *further])
    stages = _stages(own.get("stages"), f"{where}: 'stages'", known)
    each = _per_stage(own.get("per_stage"), f"{where}: 'per_stage'", known)
    out = own.get("out", "msprobe_run")
    if not isinstance(out, str) or not out.strip():
        raise ConfigError(f"{where}: 'out' is {out!r}, but must be the directory that the run is written to")
    root = given_path(out, f"{where}: 'out'")
    return StageConfig(
        out=root,
        steps=parse_ranges(own.get("steps", []), f"{where}: 'steps'"),
        ranks=parse_ranges(own.get("ranks", []), f"{where}: 'ranks'"),
        stages=stages,
        configs={stage: _config(rest | each.get(stage, {}), where, root / stage) for stage in stages},
        strict=_flag(own.get("strict", False), f"{where}: 'strict'"),
        known=tuple(known),
    )


def _config(fields: JsonObject, where: str, directory: Path) -> Config:
    return check_config({"level": "L0", **fields}, where, dump_path=str(directory))


def _check_names(fields: JsonObject, where: str, further: Sequence[str]) -> None:
    try:
        check_config(fields, where)
    except UnknownFieldError as error:
        raise UnknownFieldError(f"{error}; of a trainer with stages also {', '.join(further)}") from error


def _stages(value: Any, where: str, known: Sequence[str]) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if names is None:
        return tuple(known)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):  # pyright: ignore[reportUnknownVariableType]
        raise ConfigError(f"{where} is {value!r}, but must be a list of stages; known: {', '.join(known)}")
    for name in names:  # pyright: ignore[reportUnknownVariableType]
        if name not in known:
            raise ConfigError(f"{where} has {name!r}, which is no stage; known: {', '.join(known)}")
    return tuple(names) or tuple(known)  # pyright: ignore[reportUnknownArgumentType]


def _per_stage(value: Any, where: str, known: Sequence[str]) -> dict[str, JsonObject]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(fields, dict) for fields in value.values()):  # pyright: ignore[reportUnknownVariableType]
        raise ConfigError(
            f"{where} is {value!r}, but must hold fields by stage, such as {{{known[0]}: {{level: mix}}}}"
        )
    _stages(list(value), where, known)  # pyright: ignore[reportUnknownArgumentType]
    return value  # pyright: ignore[reportUnknownVariableType]


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where} is {value!r}, but must be true or false")
    return value
