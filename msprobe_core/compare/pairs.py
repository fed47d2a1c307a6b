"""Pairing of the dumps of two runs, by step and rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msprobe_core.compare.pairing_codes import PairingCode
from msprobe_core.errors import CompareError, DumpError, NothingInCommonError
from msprobe_core.execute.units import files_of
from msprobe_core.findings import Finding
from msprobe_core.store.kernel_files import KernelUnit, find_kernel_units
from msprobe_core.store.layout import Unit, find_units
from msprobe_core.store.reading import check_exists, is_dump, read_dump
from msprobe_core.store.runs import steps_of_run, units_of_step

if TYPE_CHECKING:
    from msprobe_core.compare.layouts.rank_groups import Group
    from msprobe_core.compare.layouts.rules import LayoutRules


@dataclass(frozen=True)
class UnitPair:
    """Two dumps to compare: one unit of work.

    Attributes:
        label: Name in reports; empty for two single dumps.
        step: Number of the step; ``None`` if only one was given.
        rank: Number of the rank; ``None`` outside of a job.
        target: The dump's directory or file.
        golden: The dump's directory or file.
        target_parts: Dumps of several ranks to merge; empty if ``target`` is the only one. Otherwise ``target`` is
            their name in reports, for example their directory.
        golden_parts: The same for the golden side.
        notes: Notes on the pairing, such as ranks without a counterpart.
        is_first_step: Whether it is of the first compared step, which begins with the initial parameters of the runs.
        joins_calls: Whether the calls of each mini-batch are joined, as both sides cut or order its samples otherwise.
    """

    label: str
    step: int | None
    rank: int | None
    target: Path
    golden: Path
    target_parts: tuple[Path, ...] = ()
    golden_parts: tuple[Path, ...] = ()
    notes: tuple[Finding, ...] = field(default=(), hash=False)  # findings have none
    is_first_step: bool = True
    joins_calls: bool = False

    @property
    def files(self) -> Sequence[Path]:
        """The files of both sides, including all merged ranks."""
        return files_of((*(self.target_parts or (self.target,)), *(self.golden_parts or (self.golden,))))


@dataclass(frozen=True)
class Chosen:
    """Steps and ranks to compare; empty for all that both sides have."""

    steps: Collection[int] = ()
    ranks: Collection[int] = ()


@dataclass(frozen=True)
class Pairing:
    """The pairs, by step and rank, and findings on dumps without a partner.

    Attributes:
        pairs: Pairs to compare.
        missing: Requested dumps that cannot be compared.
        spare: By step, dumps of the target's replicas that have no counterpart.
        can_have_replicas: Whether replicas among the target's ranks can be identified.
    """

    pairs: Sequence[UnitPair]
    missing: Sequence[Finding]
    spare: Mapping[int | None, Sequence[Path]] = field(default_factory=dict[int | None, Sequence[Path]])
    can_have_replicas: bool = True


def find_pairs(target: Path, golden: Path, chosen: Chosen | None = None, layouts: LayoutRules | None = None) -> Pairing:
    """Return the pairs of dumps to compare.

    Args:
        target: One dump, a step's directory with its ranks, a run's directory with its steps, or one of kernels.
        golden: A path of the same kind.
        chosen: Selected steps and ranks; one that neither side has is an error, one that one side lacks is missing.
        layouts: Parallel layouts; if given, ranks that hold parts of the same tensors are compared together.

    Raises:
        CompareError: the two are of different kinds, or have nothing in common.
        DumpError: a directory cannot be read, or contains no dump.
    """
    found = _find_pairs(target, golden, chosen, layouts)
    first = found.pairs[0].step if found.pairs else None
    return replace(found, pairs=[replace(pair, is_first_step=pair.step == first) for pair in found.pairs])


def _find_pairs(target: Path, golden: Path, chosen: Chosen | None, layouts: LayoutRules | None) -> Pairing:
    chosen = chosen or Chosen()
    for path in (target, golden):
        check_exists(path)
    if is_dump(target) != is_dump(golden):
        single, other = (target, golden) if is_dump(target) else (golden, target)
        raise CompareError(f"{single} is one dump and {other} is not; give two dumps or two step directories")
    if is_dump(target):
        _refuse_choice(chosen, f"{target} is a single dump")
        return Pairing([UnitPair("", None, None, target, golden)], [])
    for path in (target, golden):
        if modes := _execution_modes(path):
            raise CompareError(
                f"{path}: holds {' and '.join(modes)}, which were recorded of one run each; give one of them on both "
                f"sides, for example {path / modes[0]}, or compare them all with `msprobe compare`"
            )
    kernels = find_kernel_units(target), find_kernel_units(golden)
    if any(kernels):
        return _pair_kernels(target, golden, kernels, chosen)
    (own, own_notes), (other, other_notes) = steps_of_run(target), steps_of_run(golden)
    steps = dict(own), dict(other)
    if bool(steps[0]) != bool(steps[1]):
        run, step = (target, golden) if steps[0] else (golden, target)
        find_units(step)  # raises the right error if it is not a step either
        number = min(steps[0] or steps[1])
        raise CompareError(
            f"{run} holds whole steps and {step} is a single one; give one of its steps, for example "
            f"{run / f'step{number}'}"
        )
    if not steps[0]:
        _refuse_choice(Chosen(steps=chosen.steps), f"{target} is a single step")
        return _pair_ranks(target, golden, None, chosen.ranks, layouts)
    return _noted(_pair_steps(target, golden, steps, chosen, layouts), [*own_notes, *other_notes])


def _noted(pairing: Pairing, notes: Sequence[Finding]) -> Pairing:
    """Return a pairing with the notes added to its first pair only, since they apply to all."""
    if not notes or not pairing.pairs:
        return pairing
    first, *others = pairing.pairs
    return replace(pairing, pairs=[replace(first, notes=(*notes, *first.notes)), *others])


_MODES = ("graph", "pynative")
"""Directories of dumps of MindSpore's static and dynamic graphs of one run, each with steps."""


def _execution_modes(path: Path) -> list[str]:
    return [name for name in _MODES if (path / name).is_dir()]


def find_pairs_of_modes(
    target: Path, golden: Path, chosen: Chosen | None = None, layouts: LayoutRules | None = None
) -> Pairing:
    """Return the result of `find_pairs`, also for directories with dumps of static and dynamic graphs.

    Pairs of the two modes share step and rank, so they must not be ordered or merged as ranks of one job.

    Raises:
        CompareError: see `find_pairs`.
        DumpError: see `find_pairs`.
    """
    for path in (target, golden):
        check_exists(path)
    modes = [_execution_modes(path) for path in (target, golden)]
    if not all(modes):
        return find_pairs(target, golden, chosen, layouts)
    pairs: list[UnitPair] = []
    missing: list[Finding] = []
    for mode in _MODES:
        if mode in modes[0] and mode in modes[1]:
            try:
                found = find_pairs(target / mode, golden / mode, chosen, layouts)
            except (CompareError, DumpError) as error:
                missing.append(_not_compared(mode, error))
                continue
            pairs += [replace(pair, label=f"{mode}/{pair.label}".rstrip("/")) for pair in found.pairs]
            missing += [Finding(PairingCode.OF_MODE, fields={"mode": mode, "finding": each}) for each in found.missing]
        elif mode in modes[0] or mode in modes[1]:
            missing.append(_only_in(target if mode in modes[0] else golden, mode))
    if not pairs:
        raise NothingInCommonError(f"{target} and {golden} have nothing in common: {missing[0]}")
    return Pairing(pairs, missing, can_have_replicas=False)


def _refuse_choice(chosen: Chosen, reason: str) -> None:
    for what, numbers in (("steps", chosen.steps), ("ranks", chosen.ranks)):
        if numbers:
            raise CompareError(f"{reason}: there are no {what} to choose from; leave out --{what}")


def _pair_steps(
    target: Path,
    golden: Path,
    steps: tuple[dict[int, Path], dict[int, Path]],
    chosen: Chosen,
    layouts: LayoutRules | None,
) -> Pairing:
    wanted = chosen.steps or sorted({*steps[0], *steps[1]})
    missing = _lone("step", set(steps[0]), set(steps[1]), target, golden, wanted)
    pairs: list[UnitPair] = []
    spare: dict[int | None, Sequence[Path]] = {}
    for step in (step for step in sorted(wanted) if step in steps[0] and step in steps[1]):
        try:
            found = _pair_ranks(steps[0][step], steps[1][step], step, chosen.ranks, layouts)
        except (CompareError, DumpError) as error:  # noqa: PERF203  # a step costs far more than a try
            missing.append(_not_compared(f"step{step}", error))
        else:
            pairs += found.pairs
            missing += found.missing
            spare |= found.spare
    if not pairs:
        have = [_listed("step", side) for side in steps]
        reason = missing[0] if missing else "none was chosen"
        raise NothingInCommonError(
            f"{target} ({have[0]}) and {golden} ({have[1]}) have no step to compare: {reason}; to compare two steps "
            "with each other, give their directories"
        )
    return Pairing(pairs, missing, spare)


def _lone(
    what: str, targets: set[int], goldens: set[int], target: Path, golden: Path, wanted: Collection[int]
) -> list[Finding]:
    """Return findings on the wanted numbers that only one side has, or neither."""
    return [
        _only_in(target if number in targets else golden, f"{what}{number}")
        if number in targets | goldens
        else _in_neither(target, golden, f"{what}{number}")
        for number in sorted(wanted)
        if number not in targets & goldens
    ]


def _only_in(path: Path, what: str) -> Finding:
    return Finding(PairingCode.ONLY_IN, fields={"what": what, "path": str(path)})


def _in_neither(target: Path, golden: Path, what: str) -> Finding:
    return Finding(PairingCode.IN_NEITHER, fields={"what": what, "target": str(target), "golden": str(golden)})


def _not_compared(what: str, error: Exception) -> Finding:
    return Finding(PairingCode.NOT_COMPARED, fields={"what": what, "why": str(error)})


def _listed(what: str, numbers: Collection[int]) -> str:
    few = sorted(numbers)[:4]
    return ", ".join(f"{what}{number}" for number in few) + (", …" if len(numbers) > len(few) else "")


def _pair_ranks(
    target: Path, golden: Path, step: int | None, wanted: Collection[int], layouts: LayoutRules | None
) -> Pairing:
    own, other = units_of_step(target), units_of_step(golden)
    pairing = _pair_units(target, golden, (own.units, other.units), step, wanted, layouts)
    return _noted(pairing, [*own.notes, *other.notes])


def _pair_units(
    target: Path,
    golden: Path,
    found: tuple[Sequence[Unit], Sequence[Unit]],
    step: int | None,
    wanted: Collection[int],
    layouts: LayoutRules | None,
) -> Pairing:
    targets, goldens = found
    prefix = "" if step is None else f"step{step}/"
    have_ranks = [units[0].rank is not None for units in (targets, goldens)]
    if not all(have_ranks):
        unnumbered, path = (targets, target) if not have_ranks[0] else (goldens, golden)
        _refuse_choice(Chosen(ranks=wanted), f"{path} holds {unnumbered[0].label} without a rank")
    if layouts is not None:
        from msprobe_core.compare.layouts.rank_groups import plan_groups  # slow to import, and rarely needed

        sides = [[unit for unit in units if not wanted or unit.rank in wanted] for units in (targets, goldens)]
        known = {unit.rank for unit in (*targets, *goldens)}
        lone = [_in_neither(target, golden, f"rank{rank}") for rank in sorted({*wanted} - known)]
        for units, path in zip(sides, (target, golden), strict=True):
            if not units:
                raise CompareError(f"{path}: has none of the ranks asked for ({_listed('rank', wanted)})")
        groups = plan_groups(sides[0], sides[1], layouts)
        used = {unit.directory for group in groups for unit in (*group.target, *group.golden)}
        spare, others = ([unit for unit in units if unit.directory not in used] for units in sides)
        notes = tuple(_fewer_replicas(path, units) for path, units in ((target, spare), (golden, others)) if units)
        own = [replace(_pair_of(group, prefix, step), notes=notes) for group in groups]
        return Pairing(own, lone, {step: [unit.directory for unit in spare]})
    if len(targets) == len(goldens) == 1 and not all(have_ranks):
        # One process on each side: pair them whatever their directories are called.
        label = prefix + targets[0].label
        return Pairing([UnitPair(label, step, targets[0].rank, targets[0].directory, goldens[0].directory)], [])
    _check_ranks(targets, target, goldens)
    _check_ranks(goldens, golden, targets)
    by_rank = {unit.rank: unit for unit in goldens if unit.rank is not None}
    own = {unit.rank: unit for unit in targets if unit.rank is not None}
    chosen = wanted or sorted({*own, *by_rank})
    pairs = [
        UnitPair(f"{prefix}{own[rank].label}", step, rank, own[rank].directory, by_rank[rank].directory)
        for rank in sorted(chosen)
        if rank in own and rank in by_rank
    ]
    missing = _lone("rank", set(own), set(by_rank), target, golden, chosen)
    if missing and len(targets) != len(goldens) and (parts := _in_parts(targets, goldens)):
        missing.append(parts)
    if not pairs:
        ranks = [_listed("rank", numbers) for numbers in (own, by_rank)]
        asked = f", of those asked for ({_listed('rank', wanted)})" if wanted else ""
        raise NothingInCommonError(
            f"{target} and {golden} have no rank in common{asked} ({ranks[0]} and {ranks[1]}); to compare two ranks "
            "with each other, give their directories"
        )
    return Pairing(pairs, missing)


def _fewer_replicas(path: Path, units: Sequence[Unit]) -> Finding:
    ranks = _listed("rank", [unit.rank for unit in units if unit.rank is not None])
    return Finding(PairingCode.FEWER_REPLICAS, fields={"path": str(path), "ranks": ranks})


def _pair_of(group: Group, prefix: str, step: int | None) -> UnitPair:
    sides = (group.target, group.golden)
    ranks = group.target[0].rank if len(group.target) == len(group.golden) == 1 else None
    whole = [units[0].directory if len(units) == 1 else units[0].directory.parent for units in sides]
    parts = [tuple(unit.directory for unit in units) if len(units) > 1 else () for units in sides]
    return UnitPair(prefix + group.label, step, ranks, whole[0], whole[1], parts[0], parts[1])


def _check_ranks(units: Sequence[Unit], path: Path, others: Sequence[Unit]) -> None:
    if units[0].rank is None:
        labels = ", ".join(unit.label for unit in units[:4])
        advice = f"{parts}; or " if (parts := _in_parts(units, others)) else ""
        raise CompareError(
            f"{path}: holds {labels} without a rank, and the other side more than one process; {advice}give the "
            "directories of the two to compare, or remove what earlier runs left"
        )


def _in_parts(units: Sequence[Unit], others: Sequence[Unit]) -> Finding | None:
    """Return a finding if one side has in several ranks the parts of tensors that the other has in one."""
    if min(len(units), len(others)) > 1:
        return None
    several = max(units, others, key=len)[0].directory
    try:
        frame = read_dump(several).frame
    except (CompareError, DumpError):
        return None
    if frame["distribution"].null_count() == frame.height:
        return None
    return Finding(PairingCode.IN_PARTS, fields={"path": str(several.parent)})


# --- kernels ------------------------------------------------------------------------------------------------------

_KernelKey: TypeAlias = tuple[int, int, str]
"""Step, rank, and graph; the graph is empty if each side has only one."""


def _pair_kernels(
    target: Path, golden: Path, units: tuple[Sequence[KernelUnit], Sequence[KernelUnit]], chosen: Chosen
) -> Pairing:
    """Pair runs of graphs by iteration, used as step, and rank; also by graph, if a side has several."""
    for path, own in zip((target, golden), units, strict=True):
        if not own:
            raise CompareError(f"{path}: holds no dump of kernels (rank_0/Net/0/0, …), and the other side does")
    key = _key_of_kernels(units)
    sides = [{key(unit): unit for unit in own if _is_chosen(unit, chosen)} for own in units]
    missing: list[Finding] = []
    for what, wanted, place in (("step", chosen.steps, 0), ("rank", chosen.ranks, 1)):
        known = {key(unit)[place] for own in units for unit in own}
        missing += [_in_neither(target, golden, f"{what}{number}") for number in sorted({*wanted} - known)]
    pairs: list[UnitPair] = []
    for found in sorted({*sides[0], *sides[1]}):
        step, rank, graph = found
        label = "/".join(part for part in (f"step{step}", graph, f"rank{rank}") if part)
        if found in sides[0] and found in sides[1]:
            pairs.append(UnitPair(label, step, rank, sides[0][found].directory, sides[1][found].directory))
        else:
            missing.append(_only_in(target if found in sides[0] else golden, label))
    if not pairs:
        reason = missing[0] if missing else "none was chosen"
        raise NothingInCommonError(f"{target} and {golden} have no run of a graph in common: {reason}")
    return Pairing(pairs, missing, can_have_replicas=False)


def _is_chosen(unit: KernelUnit, chosen: Chosen) -> bool:
    return (not chosen.steps or unit.iteration in chosen.steps) and (not chosen.ranks or unit.rank in chosen.ranks)


def _key_of_kernels(sides: Sequence[Sequence[KernelUnit]]) -> Callable[[KernelUnit], _KernelKey]:
    # If each side has only one, its name is ignored: the name of the net is a setting, and graphs are numbered in the
    # order of compilation.
    has_one_net = all(len({unit.net for unit in side}) == 1 for side in sides)
    has_one_graph = has_one_net and all(len({unit.graph for unit in side}) == 1 for side in sides)

    def key(unit: KernelUnit) -> _KernelKey:
        graph = "" if has_one_graph else f"graph{unit.graph}" if has_one_net else f"{unit.net}_graph{unit.graph}"
        return unit.iteration, unit.rank, graph

    return key
