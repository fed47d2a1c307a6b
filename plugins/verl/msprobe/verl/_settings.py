"""What verl was told, for the manifests of a job: the trainer's configuration, and what its workers made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msprobe.verl._process_recording import ProcessRecording
from msprobe_core.manifest import Scalar, flattened
from msprobe_core.rl import recorded_config


def settings_of_process() -> Mapping[str, Scalar] | None:
    """Return the settings of this process; ``None`` if nothing of verl is recorded in it.

    The trainer's settings have verl's own names. Those that a worker has are below the name of its role, ``actor`` or
    ``critic``: they are what the engine was made with, after verl has filled in defaults.
    """
    recording = ProcessRecording.current()
    if recording is None:
        return None
    found: dict[str, Scalar] = {"msprobe.role": recording.role}
    found |= flattened(recorded_config(recording.out))
    for role, config in recording.workers.items():
        found |= flattened(container(config), prefix=f"workers.{role}")
    return found


def container(config: Any) -> Mapping[str, Any]:
    """Return a configuration as plain containers, with references resolved."""
    try:
        from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]  # part of verl's environment
    except ImportError:
        return cast("Mapping[str, Any]", config)
    if not OmegaConf.is_config(config):  # a plain dict, from a trainer that is not verl's own
        return cast("Mapping[str, Any]", config)
    return cast("Mapping[str, Any]", OmegaConf.to_container(config, resolve=True))
