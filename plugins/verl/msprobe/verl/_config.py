"""Configuration of the plugin: fields common to trainers with stages, and those specific to verl."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from msprobe_core.plugin import ConfigError
from msprobe_core.recording import StageConfig, check_stage_config, read_fields, without_comments
from msprobe_core.rl import Hop, PublishedPlaces, RLStage

SWITCH = "MSPROBE_VERL"
"""Environment variable that names the configuration file."""


class RolloutConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to record of a serving engine.

    Attributes:
        prefill: Whether forwards of prompts are recorded.
        decode_steps: Number of decoded tokens recorded per request; -1 for all.
        requests: Number of requests recorded per step, in order of arrival; -1 for all.
    """

    prefill: bool = True
    decode_steps: int = -1
    requests: int = -1


@dataclass(frozen=True)
class VerlConfig:
    """A validated configuration file.

    Attributes:
        stages: Fields common to trainers with stages.
        batch: Whether the driver's batch is recorded.
        weights: Whether digests of sent and received parameters are recorded.
        rollout: What to record of the serving engine.
        hops: Places between trainer and engine at which weights are logged too; what is sent, and what the engine has
            then, is recorded by ``weights``.
    """

    stages: StageConfig
    batch: bool = True
    weights: bool = True
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    hops: tuple[Hop, ...] = ()

    def selects_weights(self, stage: str, version: int, rank: int) -> bool:
        """Whether a transfer of weights is recorded: one that follows a recorded step, or provides its weights."""
        selects = self.stages.selects
        return self.weights and (selects(stage, version, rank) or selects(stage, version + 1, rank))

    def selects_hop(self, hop: Hop, version: int, rank: int) -> bool:
        """Whether weights are logged at a place of a transfer."""
        return hop in self.hops and self.selects_weights(RLStage.WEIGHTS_SENT.value, version, rank)


_OWN: dict[str, Any] = {"batch": bool, "weights": bool, "rollout": RolloutConfig, "hops": list[str]}


def load_verl_config(path: Path) -> VerlConfig:
    """Return the configuration in ``path``, JSON or YAML.

    Raises:
        ConfigError: it cannot be read, a field or a stage is unknown, or a value is not allowed.
    """
    return check_verl_config(read_fields(path), str(path))


def check_verl_config(fields: dict[str, Any], where: str) -> VerlConfig:
    """Validate the content ``fields`` of the configuration file ``where``, and return it.

    Raises:
        ConfigError: a field or a stage is unknown, or a value is not allowed.
    """
    fields = without_comments(fields)
    own = {name: fields[name] for name in _OWN if fields.get(name) is not None}
    rest = {name: value for name, value in fields.items() if name not in _OWN}
    recorded = [stage.value for stage in RLStage if stage is not RLStage.ROUTING]  # verl keeps experts in the batch
    stages = check_stage_config(rest, where, recorded, further=_OWN)
    checked = {name: _checked(name, value, where) for name, value in own.items()}
    if "hops" in checked:
        checked["hops"] = tuple(map(Hop.named, checked["hops"]))
    return VerlConfig(stages, **checked)


def published_config(places: PublishedPlaces) -> VerlConfig:
    """Return what the published variables for checks of weights ask for: weights, and nothing else."""
    sends = [RLStage.WEIGHTS_SENT.value, RLStage.WEIGHTS_RECEIVED.value]
    fields = {"out": str(places.path), "stages": sends, "batch": False, "hops": [hop.value for hop in places.hops]}
    return check_verl_config(fields, "UWC_ENABLE")


def _checked(name: str, value: Any, where: str) -> Any:
    try:
        checked = msgspec.convert(value, _OWN[name])
    except msgspec.ValidationError as error:
        known = f"; known: {', '.join(RolloutConfig.__struct_fields__)}" if name == "rollout" else ""
        raise ConfigError(f"{where}: {name!r} is {value!r}: {error}{known}") from error
    if isinstance(checked, RolloutConfig):
        for limit in ("decode_steps", "requests"):
            if cast("int", getattr(checked, limit)) < -1:
                raise ConfigError(f"{where}: '{limit}' of 'rollout' must be at least 0, or -1 for all")
    return checked


def inherited_environment() -> dict[str, str]:
    """Return the environment variables that other processes of the job need to be recorded too."""
    path = os.environ.get(SWITCH, "").strip()
    return {SWITCH: str(Path(path).expanduser().absolute())} if path else {}
