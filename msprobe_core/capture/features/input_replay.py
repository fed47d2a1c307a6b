"""Replacement of module inputs by those of an earlier run (setting ``load``); this changes the computation."""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from msprobe_core import names
from msprobe_core.capture.attachments import Attachments, watching
from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.capture.forward_window import ForwardWindow
from msprobe_core.config.schema import LoadOptions
from msprobe_core.errors import DumpError
from msprobe_core.model import MAX_DEPTH, Phase, Role, Site, SiteKind
from msprobe_core.protocols.capabilities import WatchingFramework
from msprobe_core.protocols.framework import Framework, NamedModel
from msprobe_core.protocols.storage import Dump
from msprobe_core.store import layout
from msprobe_core.store.reading import read_dump
from msprobe_core.store.runs import find_unit

_logger = logging.getLogger(__name__)

_Replace = Callable[[Any, str], Any]
"""Returns the replacement for the tensor at a dotted path."""


class InputLoader(Feature):
    """Replaces the tensors among the arguments of the calls that ``load`` names; implements `CallWatcher`.

    Calls are numbered like recorded ones: per module, within the windows of one step, from 0.
    """

    def __init__(self, options: LoadOptions, framework: Framework, loader: WatchingFramework) -> None:
        """Begin with nothing replaced.

        Args:
            options: The calls, and the run to read.
            framework: Recognises its tensors.
            loader: The same framework, as one that reads tensors.
        """
        self._options = options
        self._framework = framework
        self._loader = loader
        sites = [names.parse_entry(entry) for entry in options.modules]
        self._wanted = {(site.path, site.type_name) for site in sites}
        self._lock = threading.Lock()
        self._step: int | None = None
        self._directory: Path | None = None
        self._file_names: Mapping[str, str] = {}
        self._counts: dict[str, int] = {}
        self._found: set[str] = set()
        self._reported: set[str] = set()
        self._modules: dict[tuple[str, str], None] = {}
        self._has_warned = False
        self._forwards: ForwardWindow | None = None  # other forwards are not counted, as in recording

    @classmethod
    def make(cls, host: Host) -> InputLoader | None:
        """Return the feature if the configuration selects it.

        Raises:
            PluginError: the framework's plugin cannot watch calls.
        """
        load = host.config.load
        return None if load is None else cls(load, host.framework, watching("load", host.framework))

    def begin_window(self, step: int, rank: int | None) -> bool:
        """Begin a window, and return whether inputs are replaced in it."""
        options = self._options
        if (options.step and step not in options.step) or (options.rank and (rank or 0) not in options.rank):
            return False
        if step != self._step:
            self._step, self._directory = step, self._find(step, rank)
            self._counts, self._found, self._reported = {}, set(), set()
        self._modules = {}
        return self._directory is not None

    def attach(self, attachments: Attachments, models: Sequence[NamedModel], forwards: ForwardWindow | None) -> None:
        """See `Feature`."""
        self._forwards = forwards
        attachments.put_in_place(self._loader.watch, models, self)

    def _find(self, step: int, rank: int | None) -> Path | None:
        try:
            unit, notes = find_unit(Path(self._options.path).expanduser() / f"step{step}", rank)
        except DumpError as error:
            _logger.warning("load: %s; nothing is replaced in step %d", error, step)
            return None
        for note in notes:
            _logger.warning("load: %s", note)
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "load: the inputs of %d module calls are replaced by those recorded in %s: "
                "from there on this run computes something else than it would without",
                len(self._options.modules), unit.directory,
            )  # fmt: skip
        self._file_names = self._find_files(unit.directory)
        return unit.directory / layout.TENSOR_DIRECTORY

    def _find_files(self, directory: Path) -> Mapping[str, str]:
        """Return the file names of recorded inputs by row name, if the run has shards.

        A tensor in a shard may be stored under the name of an earlier tensor with the same bytes, so its record is
        needed. Files of single tensors are named after them; without shards the records are not read.
        """
        try:
            if next((directory / layout.TENSOR_DIRECTORY).glob(f"*{layout.SHARD_SUFFIX}"), None) is None:
                return {}
            dump = read_dump(directory)
            file_names = _file_names_in(dump, self._options.modules)
        except Exception as error:  # noqa: BLE001  # including errors of a third-party reader
            _logger.warning("load: the records that lead to the tensors in shards cannot be read: %s", error)
            return {}
        for note in dump.notes:
            _logger.warning("load: %s", note)
        return file_names

    def end_window(self, *, was_running: bool) -> None:
        """Warn about named calls that did not happen; once per step for each."""
        if self._directory is None or not was_running:
            return
        missing = [entry for entry in self._options.modules if entry not in self._found | self._reported]
        self._reported.update(missing)
        for entry in missing:
            _logger.warning(
                "load: %s was not called until now, so nothing was replaced; %s", entry, self._advice(entry)
            )

    def _advice(self, entry: str) -> str:
        site = names.parse_entry(entry)
        if (site.path, site.type_name) in self._modules:
            stem = names.module_stem(site.prefix, site.path, site.type_name)
            return f"its module was called {self._counts.get(stem, 0)} times in this step"
        known = {
            names.format_entry(Site(kind=SiteKind.MODULE, prefix=site.prefix, path=path, type_name=type_name,
                                    phase=Phase.FORWARD, index=site.index))
            for path, type_name in self._modules
        }  # fmt: skip
        close = difflib.get_close_matches(entry, known, n=1, cutoff=0.0)
        return f"the model has no such module{f'; did you mean {close[0]}?' if close else ''}"

    # --- called by hooks ----------------------------------------------------------------------------------------

    def wants(self, path: str, type_name: str) -> bool:
        """Whether calls of this module are named."""
        self._modules[path, type_name] = None
        return (path, type_name) in self._wanted

    def before(self, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Return the recorded arguments of a named call; ``None`` for other calls."""
        if self._forwards is not None and not self._forwards.is_inside:
            return None
        with self._lock:
            index = self._counts.get(stem, 0)
            self._counts[stem] = index + 1
        entry = f"{stem}.{Phase.FORWARD.value}.{index}"
        if entry not in self._options.modules:
            return None
        self._found.add(entry)
        try:
            changed_args = tuple(_map(value, str(i), self._replacer(entry, "input")) for i, value in enumerate(args))
            replace = self._replacer(entry, "kwargs")
            return changed_args, {name: _map(value, name, replace) for name, value in kwargs.items()}
        except Exception as error:  # noqa: BLE001  # arguments are the user's objects
            _logger.warning("load: %s keeps its inputs (%s: %s)", entry, type(error).__name__, error)
            return None

    def after(self, stem: str) -> None:
        """Do nothing."""

    def _replacer(self, entry: str, category: str) -> _Replace:
        def replace(tensor: Any, path: str) -> Any:
            if not self._framework.is_tensor(tensor):
                return tensor
            assert self._directory is not None
            file_name = self._file_names.get(names.row_name(entry, Role.INPUT, path))
            if file_name is None:
                stem = names.tensor_file_stem(entry, category, path)
                file_name = layout.tensor_file_name(stem, self._framework.tensor_suffix)
            file = self._directory / file_name
            where = f"{entry}: {category} {path}"
            if layout.shard_member(file_name) is None and not file.exists():
                _logger.warning("load: %s keeps its value: there is no %s", where, file)
                return tensor
            try:
                loaded = self._read(layout.tensor_path(self._directory, file_name), tensor)
                before, after = self._framework.describe(tensor), self._framework.describe(loaded)
            except DumpError as error:  # its message names the file
                _logger.warning("load: %s keeps its value: %s", where, error)
                return tensor
            except Exception as error:  # noqa: BLE001  # raised by a framework for an unknown file
                _logger.warning("load: %s keeps its value: %s cannot be loaded (%s)", where, file, error)
                return tensor
            if (before.shape, before.dtype) != (after.shape, after.dtype):
                _logger.warning(
                    "load: %s was %s of shape %s and is replaced by %s of shape %s",
                    where, before.dtype, list(before.shape), after.dtype, list(after.shape),
                )  # fmt: skip
            _logger.info("load: %s is replaced by %s", where, file)
            return loaded

        return replace

    def _read(self, file: Path, like: Any) -> Any:
        """Return the tensor from a file or, for a reference to a shard, from the shard."""
        if layout.shard_member(file.name) is None:
            return self._loader.load(file, like)
        from msprobe_core.store.tensors import open_tensor  # slow to import, and needed here only

        return self._loader.rebuild(open_tensor(file).content(), like)


def _file_names_in(dump: Dump, entries: Sequence[str]) -> dict[str, str]:
    """Return the file names of the calls' inputs by row name."""
    frame = dump.frame
    frame = frame.filter(
        frame["entry"].is_in(entries) & (frame["role"] == Role.INPUT.value) & frame["file_name"].is_not_null()
    )
    return dict(frame.select("key", "file_name").iter_rows())


def _map(value: Any, path: str, replace: _Replace, depth: int = 0) -> Any:
    """Return ``value`` with every tensor replaced; containers are rebuilt with their own types."""
    if depth == MAX_DEPTH:
        return value
    kind = cast("type[Any]", type(value))
    make = cast("Callable[..., Any]", kind)
    if kind is dict:
        items = cast("Mapping[Any, Any]", value).items()
        return {key: _map(item, f"{path}.{key}", replace, depth + 1) for key, item in items}
    is_tuple = issubclass(kind, tuple)
    fields: Sequence[str] | None = getattr(value, "_fields", None) if is_tuple else None
    if kind not in (tuple, list) and fields is None:
        return replace(value, path)
    parts = cast("Sequence[Any]", value)
    labels = map(str, range(len(parts))) if fields is None else fields
    mapped = [_map(item, f"{path}.{label}", replace, depth + 1) for label, item in zip(labels, parts, strict=True)]
    return make(mapped) if fields is None else make(*mapped)
