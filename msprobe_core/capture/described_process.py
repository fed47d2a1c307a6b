"""The manifest of this process as it is now: what the framework, the trainers and the installation say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.garbage import paused_collection
from msprobe_core.guard import checked, kept, reason_of
from msprobe_core.manifest.cleaning import cleaned_optimizers
from msprobe_core.manifest.facts import Device, Library, Manifest, RunFacts, Scalar
from msprobe_core.manifest.libraries import installed_libraries
from msprobe_core.manifest.process import manifest_of
from msprobe_core.manifest.settings import flattened
from msprobe_core.plugins import registry
from msprobe_core.protocols.capabilities import DescribingFramework
from msprobe_core.protocols.framework import Framework, NamedModel
from msprobe_core.store.layout import make_directory
from msprobe_core.store.manifest_file import write_manifest

_logger = logging.getLogger(__name__)

Noting = Callable[[str], AbstractContextManager[None]]
"""Returns a block that notes what fails in it; the argument says what was done."""


def described_process(
    framework: Framework,
    models: Sequence[NamedModel],
    rank: int | None,
    libraries: Callable[[], tuple[Library, ...]],
    noting: Noting,
) -> Manifest | None:
    """Return the manifest of this process, without data; ``None`` if not even its name can be found out.

    Args:
        framework: Describes the program, if it can.
        models: The models.
        rank: Rank in the job; ``None`` outside of a job.
        libraries: Returns the installed libraries.
        noting: Surrounds each part, of which another may still succeed if one fails.
    """
    run = RunFacts(framework=Library(name=framework.name, version=""), device=Device(kind="unknown"))
    if isinstance(framework, DescribingFramework):
        with noting("the program"), paused_collection():
            run = framework.run_facts(models)
    installed: tuple[Library, ...] = ()
    with noting("installed libraries"):
        installed = libraries()
    with noting("the process"):
        return manifest_of(run, rank=rank, libraries=installed, settings=_settings(noting))
    return None


def _settings(noting: Noting) -> dict[str, Mapping[str, Scalar]]:
    """Return what trainers were told, by trainer."""
    found: dict[str, Mapping[str, Scalar]] = {}
    for name, offer in registry().run_settings().items():
        with noting(f"settings of {name}"):
            settings = offer.read()
            if settings is not None:
                who = registry().described("run_setting", name)
                found[name] = flattened(checked(settings, Mapping, who, "read"))
    return found


class ProcessManifest:
    """A manifest of a process whose recording is no session: kernels dumped by the framework, rewards of samples.

    Its methods never raise errors of ours: a failure is a note in the file, or a warning if there is no file.
    """

    def __init__(
        self, directory: Path, framework: Framework, models: Sequence[NamedModel] = (), rank: int | None = None
    ) -> None:
        """Write it.

        Args:
            directory: Directory for the file; created in one that exists.
            framework: Describes the program, if it can.
            models: The models, if they are known.
            rank: Rank in the job; ``None`` outside of a job.
        """
        self._directory = directory
        self._framework = framework
        self._models = models
        self._notes: list[str] = []
        self._manifest = described_process(framework, models, rank, installed_libraries, self._noting)
        self._write()

    def complete(self) -> None:
        """Add the optimizers, which are known when a step has been made."""
        manifest = self._manifest
        if manifest is None or manifest.run.optimizers or not isinstance(self._framework, DescribingFramework):
            return
        with self._noting("optimizers"):
            found = tuple(self._framework.optimizers_of(self._models))
            if found:
                run = msgspec.structs.replace(manifest.run, optimizers=cleaned_optimizers(found))
                self._manifest = msgspec.structs.replace(manifest, run=run)
                self._write()

    def _write(self) -> None:
        if self._manifest is not None:
            with self._noting("the file"):
                make_directory(self._directory, below=self._directory.parent)
                write_manifest(self._directory, msgspec.structs.replace(self._manifest, notes=tuple(self._notes)))

    @contextmanager
    def _noting(self, what: str) -> Generator[None, Any, None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001  # of plugins, frameworks and disks
            note = f"{what}: {reason_of(kept(error))}"
            if not self._notes:
                _logger.warning("the manifest of this run is incomplete: %s", note)
            self._notes.append(note)
