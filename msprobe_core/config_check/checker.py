"""``ConfigChecker``: packs what a training was told and what took effect, while it runs."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.capture.data_rows import RowWatcher
from msprobe_core.capture.described_process import described_process
from msprobe_core.capture.framework_choice import find_framework
from msprobe_core.capture.window import Model
from msprobe_core.config.text import given_path
from msprobe_core.config_check.pack import DYNAMIC, STATIC, Pack, Place, RandomSite, Summary, write_pack
from msprobe_core.config_check.packing import distributions, environment
from msprobe_core.config_check.static_settings import read_settings
from msprobe_core.errors import SessionError
from msprobe_core.guard import kept, reason_of
from msprobe_core.interception.perturbation import named_tensors
from msprobe_core.interception.randomness import RandomWatch, common_states
from msprobe_core.interception.stacks import StackCache
from msprobe_core.manifest.cleaning import cleaned_optimizers
from msprobe_core.manifest.facts import DataRows, Manifest, Scalar
from msprobe_core.manifest.libraries import installed_libraries
from msprobe_core.model import Digest
from msprobe_core.protocols.capabilities import (
    DescribingFramework,
    MonitoringFramework,
    RandomDraw,
    RandomFramework,
    WatchingFramework,
)
from msprobe_core.protocols.framework import Framework, NamedModel

_logger = logging.getLogger(__name__)

MOST_STEPS = 10
"""Micro-steps whose inputs and parameters are read, unless ``num_steps`` says otherwise."""

_MAX_DEPTH = 8


class _RandomCalls:
    """Counts calls of the random functions of Python, NumPy and the framework by the place that makes them."""

    def __init__(self, framework: Framework) -> None:
        self._stacks = StackCache(framework.hidden_frames)
        self._counts: dict[tuple[str, tuple[str, ...]], int] = {}
        if isinstance(framework, RandomFramework):
            framework.watch_random(self._note, has_seeding=True)
        else:
            RandomWatch(self._note, (), common_states()).install()

    def _note(self, call: RandomDraw) -> Any:
        key = call.name, self._stacks.capture()
        self._counts[key] = self._counts.get(key, 0) + 1
        return call.run()

    @property
    def sites(self) -> Mapping[str, Sequence[RandomSite]]:
        """The calls so far."""
        found: dict[str, list[RandomSite]] = {}
        for (name, stack), count in list(self._counts.items()):  # other threads may draw
            found.setdefault(name, []).append(RandomSite(count, stack))
        return found


class ConfigChecker:
    """Packs environment, libraries, settings and, given a model, its manifest, inputs and parameters.

    ::

        ConfigChecker.apply_patches(fmk="pytorch")      # at the top of the script
        ...
        ConfigChecker(model, shell_path=["train.sh"], output_zip_path="./config_check_pack.zip", fmk="pytorch")

    The training goes on as without it: what fails here is a warning. Ranks above 0 write ``NAME_rank{r}.zip``.
    """

    _random: _RandomCalls | None = None

    @classmethod
    def apply_patches(cls, fmk: str = "pytorch") -> None:
        """Count the calls of random functions of Python, NumPy and the framework, and of seeding, from now on.

        Args:
            fmk: The framework: ``pytorch`` or ``mindspore``.

        Raises:
            PluginError: the framework is not available.
        """
        if cls._random is None:
            cls._random = _RandomCalls(find_framework(fmk, None))

    def __init__(
        self,
        model: Any = None,
        shell_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        output_zip_path: str | os.PathLike[str] = "./config_check_pack.zip",
        fmk: str = "pytorch",
        *,
        num_steps: int = MOST_STEPS,
    ) -> None:
        """Write the pack, and complete it while the model runs.

        Args:
            model: The model, whose inputs and parameters are read before each forward; ``None`` for neither.
            shell_path: Scripts and YAML files with settings.
            output_zip_path: The pack.
            fmk: The framework: ``pytorch`` or ``mindspore``.
            num_steps: Number of forwards whose inputs and parameters are read.

        Raises:
            ConfigError: a file of settings cannot be read.
            PluginError: the framework is not available.
            SessionError: the model is none of the framework.
            StoreError: the pack cannot be written.
        """
        framework = find_framework(fmk, None)
        if model is not None and not framework.is_model(model):
            raise SessionError(f"ConfigChecker got {type(model).__name__}, which is no model of {fmk}")
        rank = framework.rank()
        self._rank = rank or 0
        path = given_path(str(output_zip_path), "ConfigChecker: 'output_zip_path'")
        self._path = path if not self._rank else path.with_name(f"{path.stem}_rank{self._rank}{path.suffix}")
        self._framework = framework
        self._model = model
        self._num_steps = num_steps
        self._step = 0
        self._has_warned = False
        self._notes: list[str] = []
        models: list[NamedModel] = [] if model is None else [Model("", model)]
        files = [shell_path] if isinstance(shell_path, str | os.PathLike) else list(shell_path or ())
        settings: dict[str, Mapping[str, Scalar]] = {}
        if files:
            settings[STATIC] = read_settings([Path(each) for each in files])
        self._models = models
        self._manifest = described_process(framework, models, rank, installed_libraries, self._noting)
        if self._manifest is not None and self._manifest.run.settings:
            settings[DYNAMIC] = self._manifest.run.settings
        self._pack = Pack(environment=environment(), libraries=distributions(), settings=settings)
        self._data: list[DataRows] = []
        self._dataset: dict[Place, Mapping[str, Summary]] = {}
        self._weights: dict[Place, Mapping[str, Summary]] = {}
        self._write()
        if models and isinstance(framework, WatchingFramework):
            self._watching = framework.watch(models, self)
        atexit.register(self._complete)

    # --- CallWatcher ------------------------------------------------------------------------------------------------

    def wants(self, path: str, type_name: str) -> bool:  # noqa: ARG002
        """Whether a module is the model itself."""
        return path == ""

    def before(self, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read what the model is given, and its parameters."""
        if self._step >= self._num_steps:
            return
        try:
            with self._framework.quiet(lambda where, error: self._warn(error)):  # noqa: ARG005
                self._read(stem, args, kwargs)
            self._step += 1
            if self._step & (self._step - 1) == 0 or self._step == self._num_steps:  # 1, 2, 4, …: linear in all
                self._write()
        except BaseException as error:  # noqa: BLE001  # the training goes on
            self._warn(kept(error))

    def after(self, stem: str) -> None:
        """Do nothing."""

    def _read(self, stem: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows = self._rows()
        if rows is not None:
            rows.before(stem, args, kwargs)
        reducer = self._framework.reducer()
        inputs = dict(named_tensors("args", args, self._framework.is_tensor, _MAX_DEPTH))
        inputs |= named_tensors("kwargs", kwargs, self._framework.is_tensor, _MAX_DEPTH)
        digests: list[dict[str, Digest]] = []
        for tensors in (inputs, self._parameters()):
            own = {name: Digest() for name in tensors}
            for name, tensor in tensors.items():
                reducer.statistics(tensor, own[name])
            digests.append(own)
        if not reducer.is_complete:
            reducer.collect()
        place = self._step, self._rank
        self._dataset[place], self._weights[place] = (
            {name: _summary(digest) for name, digest in own.items()} for own in digests
        )
        if rows is not None:
            self._data += rows.fetch(self._step)

    def _rows(self) -> RowWatcher | None:
        """Return what hashes the rows of one forward, which is a step of the pack."""
        if not isinstance(self._framework, DescribingFramework):
            return None
        rows = RowWatcher(self._framework, lambda what, error: self._warn(kept(error)))  # noqa: ARG005
        rows.begin(self._models)
        return rows

    def _parameters(self) -> Mapping[str, Any]:
        framework = self._framework
        return framework.parameters_of(self._model) if isinstance(framework, MonitoringFramework) else {}

    def _write(self) -> None:
        random = type(self)._random
        own = {} if random is None else {self._rank: random.sites}
        manifests = {} if self._manifest is None else {self._rank: self._described(self._manifest)}
        pack = replace(self._pack, dataset=self._dataset, weights=self._weights, random=own, manifests=manifests)
        write_pack(self._path, pack)

    def _described(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the rows of the data, and the optimizers, which programs create after the model."""
        framework = self._framework
        if self._models and not manifest.run.optimizers and isinstance(framework, DescribingFramework):
            with self._noting("optimizers"):
                optimizers = cleaned_optimizers(tuple(framework.optimizers_of(self._models)))
                manifest = msgspec.structs.replace(
                    manifest, run=msgspec.structs.replace(manifest.run, optimizers=optimizers)
                )
        self._manifest = manifest
        return msgspec.structs.replace(manifest, data=tuple(self._data), notes=tuple(self._notes))

    def _complete(self) -> None:
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001  # the program is ending
            self._warn(kept(error))

    @contextmanager
    def _noting(self, what: str) -> Generator[None, None, None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001  # of plugins and frameworks
            reason = kept(error)
            self._notes.append(f"{what}: {reason_of(reason)}")
            self._warn(reason)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning("the pack %s is incomplete: %s", self._path, reason_of(error))


def _summary(digest: Digest) -> Summary:
    stats = digest.stats
    if stats is None:
        return Summary()
    numbers = (None if each is None else float(each) for each in (stats.max, stats.min, stats.mean, stats.l2_norm))
    return Summary(*numbers)
