"""The hooks. Each is called once, when a session or a command starts, and offers objects; the objects then do the work.

Nothing that happens once per tensor or once per step goes through pluggy. What the objects must do is written in
`msprobe_core.protocols`; plugin authors import both from `msprobe_core.plugin`. ``docs/hooks.md`` has examples.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import pluggy

if TYPE_CHECKING:
    import click

    from msprobe_core.protocols.checks import ComparisonCheck, DumpCheck, LiveCheck
    from msprobe_core.protocols.checkups import Checkup
    from msprobe_core.protocols.comparison import Executor, Metric
    from msprobe_core.protocols.framework import FrameworkOffer
    from msprobe_core.protocols.monitoring import MonitorWriterFactory
    from msprobe_core.protocols.presentation import Export, ReportFormat, TableFormat
    from msprobe_core.protocols.recording import FeatureOffer
    from msprobe_core.protocols.statistics import Statistic
    from msprobe_core.protocols.storage import Processor, Reader, WriterFactory
    from msprobe_core.protocols.trainers import ApiMap, ModuleMap, RunSettings, TrainerStages

PROJECT = "msprobe"

_Function = TypeVar("_Function", bound="Callable[..., object]")

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

_REQUIRED = "_msprobe_requires_api"


def requires_api(release: str) -> Callable[[_Function], _Function]:
    """Mark an implementation of a hook that needs this release of msprobe-core, such as ``"0.2"``, or a later one.

    An earlier one leaves this hook out, and says so; the plugin's others work. A hook that an earlier release does not
    have at all is marked with ``@hookimpl(optionalhook=True)``::

        @hookimpl
        @requires_api("0.2")
        def msprobe_register_writers(): ...
    """

    def mark(function: _Function) -> _Function:
        setattr(function, _REQUIRED, release)
        return function

    return mark


def required_api(function: Callable[..., object]) -> str | None:
    """Return the release that an implementation of a hook needs; ``None`` if it names none."""
    return getattr(function, _REQUIRED, None)


class HookSpecs:
    """The hooks. A plugin implements those it wants, as functions of its entry point's module.

    Unless a hook says otherwise:

    Order: none. Of two plugins that offer one name, the offer of the later is left out, with a warning that names both;
    plugins of this project come first.
    Errors: any exception, a result that is no list, and offers that are not what they must be, are left out, with a
    warning that names the plugin.
    Since: 0.1.
    """

    @hookspec
    def msprobe_register_frameworks(self) -> Sequence[FrameworkOffer]:  # pyright: ignore[reportReturnType]
        """Offer training frameworks.

        Called: once, when a debugger is constructed or a command needs a framework, on the calling thread.
        Cost: start-up. Neither the hook nor its module may import the framework: ``load`` does, when it is needed.
        Returns: offers; each ``name`` appears in dumps as the field ``framework``.
        """

    @hookspec
    def msprobe_register_processors(self) -> Sequence[Processor]:  # pyright: ignore[reportReturnType]
        """Offer ways to reduce a tensor to a digest.

        Called: once, when a session opens, on the thread that called ``start``.
        Cost: start-up. The returned objects are then called for every selected tensor, so they must enqueue work on the
        tensor's device and never wait for it.
        Returns: `Processor` objects; each ``name`` is a value of ``summary_mode``.
        """

    @hookspec
    def msprobe_register_statistics(self) -> Sequence[Statistic]:  # pyright: ignore[reportReturnType]
        """Offer statistics that are recorded of tensors, beside maximum, minimum, mean and norm, and compared.

        Called: once, when a session opens, on the thread that called ``start``, or when a command compares dumps that
        have such statistics.
        Cost: start-up; must not import a framework, because dumps are compared where none is installed. Each selected
        statistic is then computed of every tensor, so it must enqueue work on the tensor's device and never wait for
        it.
        Returns: `Statistic` objects; each ``name`` is a value of the setting ``extra_statistics``.
        """

    @hookspec
    def msprobe_register_writers(self) -> Sequence[WriterFactory]:  # pyright: ignore[reportReturnType]
        """Offer formats that runs can be stored in.

        Called: once, when a session opens, on the thread that called ``start``.
        Cost: start-up; writers then work on the session's background thread.
        Returns: `WriterFactory` objects; each ``name`` is a value of the setting ``writer``.
        """

    @hookspec
    def msprobe_register_monitor_writers(self) -> Sequence[MonitorWriterFactory]:  # pyright: ignore[reportReturnType]
        """Offer what values of the training monitor can be sent to: files, or a service that draws curves.

        Called: once, when a monitor is set up, on the calling thread.
        Cost: start-up. The returned objects' writers are called once per collected step, between two steps.
        Returns: `MonitorWriterFactory` objects; each ``name`` is a value of ``"msprobe": {"writers": […]}``.
        """

    @hookspec
    def msprobe_register_readers(self) -> Sequence[Reader]:  # pyright: ignore[reportReturnType]
        """Offer formats that dumps can be read from.

        Called: once, when a command opens its first dump, on the main thread.
        Cost: start-up; must not import a framework, because dumps are read where none is installed.
        Returns: `Reader` objects. The first that recognises a path reads it.
        Order: plugins of third parties before the core's own.
        """

    @hookspec
    def msprobe_register_metrics(self) -> Sequence[Metric]:  # pyright: ignore[reportReturnType]
        """Offer columns for the table of compared tensors.

        Called: once for each pair of dumps of whole tensors, before the first tensor is read.
        Cost: each pair of tensors is read once more and held in memory whole; pairs of more than 1 GiB are left out.
        Returns: `Metric` objects; each ``name`` is the title of a column, after the core's own columns.
        Order: that of the plugins. A metric with the name of one of the core's columns is left out, with a note.
        """

    @hookspec
    def msprobe_register_api_maps(self) -> Sequence[ApiMap]:  # pyright: ignore[reportReturnType]
        """Offer canonical names for a framework's APIs, module classes, parameters and arguments.

        Called: when dumps whose names need translating are compared: of two frameworks, or with ``-am``.
        Cost: start-up; must not import a framework, because dumps are compared where none is installed.
        Returns: `ApiMap` objects; each ``name`` is a framework as dumps name it. One plugin may know several.
        """

    @hookspec
    def msprobe_register_module_maps(self) -> Sequence[ModuleMap]:  # pyright: ignore[reportReturnType]
        """Offer the module names of a training backend, for comparison with a serving engine.

        Called: when ``msprobe compare --consistent_check`` is given.
        Cost: start-up; must not import a framework, because dumps are compared where none is installed.
        Returns: `ModuleMap` objects; each ``name`` is a value of ``--backend``.
        """

    @hookspec
    def msprobe_register_commands(self) -> Sequence[click.Command]:  # pyright: ignore[reportReturnType]
        """Offer subcommands of ``msprobe``.

        Called: once, when the command line starts, on the main thread.
        Cost: start-up of every command; import what a command needs inside it.
        Returns: `click.Command` objects; each ``name`` is what the user types.
        Order: as listed by ``msprobe --help``: sorted by name.
        """

    @hookspec
    def msprobe_register_tables(self) -> Sequence[TableFormat]:  # pyright: ignore[reportReturnType]
        """Offer formats of the tables that ``msprobe compare`` writes.

        Called: when the command starts, on the main thread, and once for each pair of dumps, in the process that
        compares it.
        Cost: start-up; import what a format needs in its ``table``.
        Returns: `TableFormat` objects; each ``name`` is a value of ``--compat``.
        """

    @hookspec
    def msprobe_register_reports(self) -> Sequence[ReportFormat]:  # pyright: ignore[reportReturnType]
        """Offer formats of reports on the results of ``msprobe compare`` and ``msprobe locate``.

        Called: when such a command starts with ``--report``, on the main thread.
        Cost: start-up; import what a report needs in its methods.
        Returns: `ReportFormat` objects; each ``name`` is a value of ``--report``.
        """

    @hookspec
    def msprobe_register_exports(self) -> Sequence[Export]:  # pyright: ignore[reportReturnType]
        """Offer formats of other viewers that results can be written in.

        Called: once, when ``msprobe export`` or ``msprobe graph`` starts, on the main thread.
        Cost: start-up; import what an export needs in its ``write``.
        Returns: `Export` objects; each ``name`` is an option of ``msprobe export``.
        """

    @hookspec
    def msprobe_register_executors(self) -> Sequence[Executor]:  # pyright: ignore[reportReturnType]
        """Offer executors for units of work.

        Called: once, when a command has work to distribute, on the main thread.
        Cost: start-up; import what an executor needs in its ``check`` and ``run``.
        Returns: `Executor` objects; each ``name`` is a value of ``--executor``.
        """

    @hookspec
    def msprobe_register_stages(self) -> Sequence[TrainerStages]:  # pyright: ignore[reportReturnType]
        """Offer the stages of a trainer whose steps have several.

        Called: once in a process, when the trainer's plugin begins to record, or a command lists the stages.
        Cost: start-up; must not import the trainer.
        Returns: `TrainerStages` objects; the trainer's plugin and the user's configuration look them up by ``name``.
        """

    @hookspec
    def msprobe_register_features(self) -> Sequence[FeatureOffer]:  # pyright: ignore[reportReturnType]
        """Offer what takes part in recordings besides the recorder, such as a check of the recorded calls.

        Called: once, when a session opens, on the thread that called ``start``.
        Cost: start-up. ``make`` returns ``None`` for configurations that do not ask for the feature.
        Returns: `FeatureOffer` objects; each ``name`` is that of the setting or task that asks for it.
        """

    @hookspec
    def msprobe_register_dump_checks(self) -> Sequence[DumpCheck]:  # pyright: ignore[reportReturnType]
        """Offer checks of what has been recorded.

        Called: once, when ``msprobe check`` starts, on the main thread.
        Cost: start-up; must not import a framework, because dumps are checked where none is installed.
        Returns: `DumpCheck` objects; each ``name`` is a value of ``--only``.
        """

    @hookspec
    def msprobe_register_comparison_checks(self) -> Sequence[ComparisonCheck]:  # pyright: ignore[reportReturnType]
        """Offer checks of compared pairs, whose findings are notes of the comparison.

        Called: once in each process that compares, after its first pair.
        Cost: start-up; each check then sees each compared pair.
        Returns: `ComparisonCheck` objects; each ``name`` precedes its findings.
        """

    @hookspec
    def msprobe_register_live_checks(self) -> Sequence[LiveCheck]:  # pyright: ignore[reportReturnType]
        """Offer checks of calls while they are recorded.

        Called: once, when a session opens, on the thread that called ``start``.
        Cost: start-up. Each selected check then sees every recorded call, on the thread that trains; one that takes
        more than a twentieth of the time is dropped, with a warning.
        Returns: `LiveCheck` objects; each ``name`` is a value of the setting ``live_checks``.
        """

    @hookspec
    def msprobe_register_run_settings(self) -> Sequence[RunSettings]:  # pyright: ignore[reportReturnType]
        """Offer what a trainer or another part of the program was told, for the manifest of a run.

        Called: once in a process, when the first recorded step begins, on the thread that called ``start``.
        Cost: start-up; must not import the trainer.
        Returns: `RunSettings` objects; each ``name`` is that of the trainer, as manifests have it.
        """

    @hookspec
    def msprobe_register_checkups(self) -> Sequence[Checkup]:  # pyright: ignore[reportReturnType]
        """Offer what ``msprobe doctor`` says of a framework or a trainer on this machine.

        Called: once, when ``msprobe doctor`` or ``msprobe plugins check`` starts, on the main thread.
        Cost: start-up. ``examine`` may import the framework; that of a framework whose package is not installed is not
        called.
        Returns: `Checkup` objects; each ``name`` is that of the framework or trainer.
        """


def __getattr__(name: str) -> object:
    # Plugins imported the protocols from here before there was `msprobe_core.plugin`.
    return getattr(importlib.import_module("msprobe_core.plugin"), name)
