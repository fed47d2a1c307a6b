"""``msprobe compile``: whether a compiler computes what the program says."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from msprobe_core.cli.incomplete import exit_status
from msprobe_core.cli.output_options import output_option, overwrite_option, with_options
from msprobe_core.cli.show import show_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from msprobe_core.compile_check.check import CompileCheck, ModuleCheck
    from msprobe_core.findings import Finding


@click.group("compile")
def compile_group() -> None:
    """Check modules that are compiled, as by torch.compile, against themselves run eagerly and in float64."""


_options = with_options(
    click.argument("step", metavar="FILE.py:STEP"),
    click.option("--backend", metavar="NAME", help="The compiler: inductor (default), aot_eager, eager, …"),
    click.option(
        "--modules", multiple=True, metavar="PATTERN",
        help="Check only modules whose path matches, for example 'layers.0.*'; may be given several times. A whole "
        "model is called 'model'.",
    ),
    click.option("-n", "--number", type=click.IntRange(1), default=10, show_default=True, help="Number of rows."),
    output_option("Directory for compile.json and compile.csv."),
    overwrite_option,
)  # fmt: skip


@compile_group.command()
@_options
def check(
    *, step: str, backend: str | None, modules: tuple[str, ...], number: int, output_path: Path, overwrites: bool
) -> int:
    """Compile each module of a step alone, and judge it against its eager run and float64.

    STEP is a function without arguments that runs the model on one batch, with or without its backward; the model is
    found among the variables of its file. Or it returns a model, its optimizer and such a function. Modules get what
    the step gives them, uncompiled.

    Exit status: 0 if the compiled modules are right, 1 if one is not or the eager one is wrong, 2 if none was judged.
    """
    return _run(step, backend, modules, number, output_path, overwrites=overwrites, bisects=False)


@compile_group.command()
@_options
def bisect(
    *, step: str, backend: str | None, modules: tuple[str, ...], number: int, output_path: Path, overwrites: bool
) -> int:
    """Do what check does, and find which part of the compiler makes the first wrong module wrong.

    The parts of the compiler are switched off one after the other, by the framework's own bisector: the backend, its
    subsystem, and the number of the change in it, such as one lowering.

    Exit status: as that of check.
    """
    return _run(step, backend, modules, number, output_path, overwrites=overwrites, bisects=True)


def _run(
    step: str, backend: str | None, patterns: Sequence[str], number: int, output_path: Path, *, overwrites: bool,
    bisects: bool,
) -> int:  # fmt: skip
    from msprobe_core.compile_check.check import check_modules, guilty_part, module_compiler
    from msprobe_core.compile_check.check_files import COMPILE_RESULT, write_check
    from msprobe_core.confirm import load_function
    from msprobe_core.free_benchmark.step_function import training_step
    from msprobe_core.store.layout import check_place

    check_place(output_path)
    if not overwrites:
        COMPILE_RESULT.refuse_foreign(output_path)
    compiler = module_compiler(training_step(load_function(step, argument="FILE.py:STEP"), step))
    found = check_modules(compiler, backend=backend, patterns=patterns, progress=_say_progress)
    part: Finding | None = None
    commands: Sequence[str] = ()
    if found.culprits:
        first = found.culprits[0]
        commands = compiler.commands(_command(step, first, found.backend, output_path))
        if bisects:
            part = guilty_part(compiler, first, found.backend)[1]
    paths = write_check(found, output_path, part)
    show_lines(_lines(found, part, commands, number), f"it is in {paths[0]}")
    click.echo(f"Results: {', '.join(map(str, paths))}")
    return exit_status(is_wrong=bool(found.culprits), is_judged=bool(found.num_judged))


def _command(step: str, module: ModuleCheck, backend: str, output_path: Path) -> str:
    arguments = ["msprobe", "compile", "check", step, "--modules", module.path, "-o", f"{output_path}/bisected"]
    if backend != "inductor":
        arguments += ["--backend", backend]
    return shlex.join(arguments)


def _say_progress(done: int, number: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\rmodules: {done} of {number} ", nl=False, err=True)


def _lines(found: CompileCheck, part: Finding | None, commands: Sequence[str], number: int) -> Iterator[str]:
    yield found.headline.text
    if part is not None:
        yield part.text
    counts = ", ".join(f"{count} {kind.value.replace('_', ' ')}" for kind, count in found.counts.items() if count)
    yield f"{len(found.modules):,} modules compiled with {found.backend}: {counts}; {found.seconds:.1f} s"
    rows = sorted(found.modules, key=lambda each: (not each.verdict.is_bad, each.is_explained))
    yield f"{'eager':>9}  {'compiled':>9}  {'verdict':<15}  module: result"
    for module in rows[:number]:
        worst = module.worst
        if worst is not None:
            verdict = module.verdict.value.replace("_", " ")
            yield f"{worst.eager:>9.3g}  {worst.compiled:>9.3g}  {verdict:<15}  {module.label}: {worst.name}"
    if len(rows) > number:
        yield f"and {len(rows) - number} more"
    for note in found.notes:
        yield f"note: {note.text}"
    for command in commands:
        yield f"to go on: {command}"
