"""The manifest of a run: recorded with the first step of a process, and the rows of its data with every step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from msprobe_core.capture.attachments import Attachments
from msprobe_core.capture.data_rows import RowWatcher
from msprobe_core.capture.described_process import described_process
from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.capture.forward_window import ForwardWindow
from msprobe_core.garbage import paused_collection
from msprobe_core.guard import kept, reason_of
from msprobe_core.manifest.cleaning import cleaned_optimizers
from msprobe_core.manifest.facts import DataRows, Manifest
from msprobe_core.protocols.capabilities import (
    DataWatchingFramework,
    DescribingFramework,
    UpdateObservingFramework,
    WatchingFramework,
)
from msprobe_core.protocols.framework import NamedModel, Removable
from msprobe_core.store.manifest_file import DATA_ROWS_FILE, MANIFEST_FILE, write_data_rows, write_manifest

_logger = logging.getLogger(__name__)


class ManifestRecording(Feature):
    """Writes the manifest beside the first dump, completes it when its windows end, and hashes rows of the data.

    What fails is noted in the manifest; nothing here ends recording.
    """

    def __init__(self, host: Host) -> None:
        """Begin; see `make`."""
        self._host = host
        self._framework = host.framework
        self._describes = host.framework if isinstance(host.framework, DescribingFramework) else None
        self._unit: Path | None = None
        self._rank: int | None = None
        self._step = 0
        self._is_first = False
        self._models: Sequence[NamedModel] = ()
        self._manifest: Manifest | None = None
        self._written: Manifest | None = None
        self._notes: list[str] = []
        self._data: list[DataRows] = []
        self._num_written = 0
        self._rows: RowWatcher | None = None
        self._has_warned = False

    @classmethod
    def make(cls, host: Host) -> ManifestRecording | None:
        """Return the feature, unless it is switched off."""
        return cls(host) if host.config.manifest else None

    # --- the first step -------------------------------------------------------------------------------------------

    def begin_unit(self, step: int, rank: int | None) -> None:
        """Begin with nothing of an earlier run in the same place."""
        self._unit, self._step, self._rank = self._host.directory(), step, rank
        self._manifest = self._written = self._rows = None
        self._models, self._notes, self._data, self._num_written = (), [], [], 0
        with self._noting("files of an earlier run"):
            assert self._unit is not None
            self._is_first = self._host.manifests.is_first(self._unit)
            for name in (MANIFEST_FILE, DATA_ROWS_FILE):
                (self._unit / name).unlink(missing_ok=True)

    def begin_recording(self, models: Sequence[NamedModel]) -> None:
        """Describe the run before anything is attached, once: then nothing of ours is in it."""
        if not self._is_first or self._manifest is not None or self._unit is None:
            return
        self._models = models
        if self._describes is None:
            self._notes.append(f"the plugin for {self._framework.name} does not describe runs")
        elif not models:
            self._notes.append("start() got no model, so no modules are described")
        self._manifest = described_process(
            self._framework, models, self._rank, lambda: self._host.manifests.libraries, self._noting
        )
        self._write()  # now already: the step may never end

    def attach_recording(
        self, attachments: Attachments, models: Sequence[NamedModel], forwards: ForwardWindow | None
    ) -> None:
        """Observe the inputs of the models and, in the first step, the steps of optimizers."""
        framework = self._framework
        if self._describes is None:
            return
        with self._noting("data"):
            watch = _watch_of(framework)
            if models and watch is not None:
                if self._rows is None:
                    self._rows = RowWatcher(self._describes, self._note)
                self._rows.begin(models, forwards)
                attachments.put_in_place(watch, models, self._rows)
        with self._noting("optimizers"):
            if self._is_first and isinstance(framework, UpdateObservingFramework):
                attachments.put_in_place(framework.watch_optimizers)

    # --- the end of windows and of the step -----------------------------------------------------------------------

    def end_window(self, *, was_running: bool) -> None:
        """Fetch the hashes of rows, and complete the files: a program may be killed before its step ends."""
        if self._unit is not None and was_running:
            self._complete()

    def end_unit(self, step: int) -> None:  # noqa: ARG002
        """Complete the files; an optimizer may have stepped after the last window."""
        if self._unit is not None:
            self._complete()
        self._unit, self._models, self._rows = None, (), None

    def _complete(self) -> None:
        with self._noting("data"):
            self._fetch()
        if self._is_first:
            self._add_switches()
            with self._noting("optimizers"):
                self._find_optimizers()
            self._write()
        elif len(self._data) > self._num_written and self._unit is not None:
            with self._noting("data"):
                write_data_rows(self._unit, self._data)
                self._num_written = len(self._data)

    def _fetch(self) -> None:
        if self._rows is None:
            return
        self._data += self._rows.fetch(self._step)

    def _find_optimizers(self) -> None:
        if self._describes is None or self._manifest is None:
            return
        with paused_collection():
            found = tuple(self._describes.optimizers_of(self._models))
        if found:
            run = msgspec.structs.replace(self._manifest.run, optimizers=cleaned_optimizers(found))
            self._manifest = msgspec.structs.replace(self._manifest, run=run)

    def _add_switches(self) -> None:
        """Replace switches by those of the first forward, around which programs enter autocast."""
        if self._rows is not None and self._rows.switches and self._manifest is not None:
            switches = {**self._manifest.run.switches, **self._rows.switches}
            run = msgspec.structs.replace(self._manifest.run, switches=switches)
            self._manifest = msgspec.structs.replace(self._manifest, run=run)

    def _write(self) -> None:
        """Write the manifest if it has changed; without one, say so once."""
        if self._manifest is None or self._unit is None:
            return
        manifest = msgspec.structs.replace(self._manifest, data=tuple(self._data), notes=tuple(self._notes))
        if manifest != self._written:
            with self._noting("the file"):
                write_manifest(self._unit, manifest)
                self._written = manifest

    # --- failures -------------------------------------------------------------------------------------------------

    @contextmanager
    def _noting(self, what: str) -> Generator[None, None, None]:
        """Note what fails in the block; the training and its recording go on."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001  # of plugins, frameworks and disks
            kept(error)  # raises what must reach the program
            self._note(what, error)

    def _note(self, what: str, error: BaseException) -> None:
        note = f"{what}: {reason_of(error)}"
        if note in self._notes:
            return
        self._notes.append(note)
        if not self._has_warned:
            self._has_warned = True
            _logger.warning("the manifest of this run is incomplete: %s", note)


def _watch_of(framework: object) -> Callable[..., Removable] | None:
    """Return how to observe the inputs of models; ``None`` if the framework cannot."""
    if isinstance(framework, DataWatchingFramework):
        return framework.watch_data
    return framework.watch if isinstance(framework, WatchingFramework) else None
