"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from bench.bugs.bug import Bug, url_of
from bench.bugs.healthy import HEALTHY

if TYPE_CHECKING:
    from bench.bugs.peers import PeerAnswer
    from bench.bugs.result import Result

_INTRO = """# Published bugs

`python -m bench.bugs --out docs/real_bugs.md` reproduces bugs that were reported in public, lets the commands find
them, and writes this page. The golden run is the code that fixed a bug, the target the code that had it: the two
releases themselves where both run beside today's PyTorch on the CPU, each installed into a directory of its own, or
the defect alone, re-created in today's code. Models have two layers and random weights, which are equal on both
sides; each run has two steps. The golden run is calibrated by three repetitions. With *other kernels* the target's
matrix products and norms also round differently, as on another device.

The first place is right if the first suspect of [`msprobe locate`](locate.md) is a call of the function that the fix
changed; modules around it, inside it or next to it are wrong, as with [planted faults](locate.md#measured-accuracy).
The halves are by the bugs' names and were fixed before the first run: wrong answers about the held out half do not
change the judge. *Commands* counts `calibrate` and `locate` if these suffice, *seconds* is the wall time of `locate`
on a machine with other work; `config`, `checkpoint` and `reduction` are `msprobe config_check`, `checkpoint compare`
and `monitor reduction-check`, which were asked of the target on the same kernels. `acc_check` is not asked: each of
these bugs consists of right calls. `compare` is asked without noise, with its fixed limits, and also calls runs
different that only compute in another way: its column for healthy pairs says how often. Missed bugs and wrong places
stay in the tables, whose rows may be of several runs of the command, each of a part of them.

With `--peers` other means of comparison are asked about the same pairs, each with its defaults, and the place of their
first answer is judged in the same way. `mindstudio-probe`: `compare -da` of release 26.2.0, on the same dumps, if
`--reference` names its command, step by step until one has a difference. `DebugMode`: the hashes of all operators'
results of PyTorch's [DebugMode](https://docs.pytorch.org/tutorials/recipes/debug_mode_tutorial.html) on both sides,
compared by its `check_hash_mismatches`. That names no place and refuses logs of other lengths, so it is called for one
call after the other until it finds a difference, and the place is the module, or the optimizer, which the log has
around that call; an operator outside of both is right wherever the change is outside of both. `allclose`: a script of
thirty lines with hooks, which calls `torch.allclose` with its default tolerances on outputs of modules in the order of
their calls, then on gradients from the last module to the first, then on the parameters after the update, whose place
is the optimizer. In its columns and those of `DebugMode` a call that only one side makes is a difference. A dash means
that a peer was not asked.

Eight of the 68 healthy pairs were called faulty when they were first run. What has changed since then was made on these
pairs ([other micro-batches, shared updates, gradients that agree](locate.md#what-it-does)), and the pair of padded
texts was not healthy itself: on the left, padding predicted the first token. So their table is no measurement on pairs
that the judge did not know; all of its rows are of runs after these changes.
"""
PEERS = ("mindstudio-probe", "DebugMode", "allclose")
_MARKS = {True: "yes", False: "no", None: "cannot tell"}
_NO_FAULT = ("agree", "failed")


def render(bugs: Mapping[str, Bug], results: Sequence[Result], healthy: Sequence[Result]) -> str:
    """Return the shares, what was asked of each bug, all wrong answers, and the healthy pairs."""
    parts = [
        _shares(bugs, results, lambda bug, one: (bug.half.value, one.kernels)),
        _shares(bugs, results, lambda bug, one: ("real code" if bug.is_real else "re-created", one.kernels)),
        _bugs(bugs, results),
        *([_peers(bugs, results), _places_of_peers(bugs, results)] if any(one.peers for one in results) else ()),
        _misses(bugs, results),
        _healthy(healthy),
    ]
    return "\n\n".join((_INTRO.strip(), *("\n".join(part) for part in parts))) + "\n"


def _shares(
    bugs: Mapping[str, Bug], results: Iterable[Result], key: Callable[[Bug, Result], tuple[str, str]]
) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Result]] = {}
    for one in results:
        groups.setdefault(key(bugs[one.name], one), []).append(one)
    yield "| bugs | kernels | number | detected by locate | by compare | first place right | among the first five |"
    yield "|---|---|---|---|---|---|---|"
    for (name, kernels), own in sorted(groups.items()):
        scores = [one.place for one in own if one.place]
        counts = (
            sum(one.detected for one in scores),
            sum(one.compare.verdict not in _NO_FAULT for one in own),
            sum(one.is_first for one in scores),
            sum(one.is_in_top_five for one in scores),
        )
        shares = " | ".join(f"{count} ({100 * count / len(own):.0f} %)" for count in counts)
        yield f"| {name} | {kernels} | {len(own)} | {shares} |"


def _bugs(bugs: Mapping[str, Bug], results: Sequence[Result]) -> Iterator[str]:
    yield "| bug | kind | report | code | half | locate: same / other kernels | also say so | commands | seconds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, bug in bugs.items():
        own = sorted((one for one in results if one.name == name), key=lambda one: one.kernels != "same")
        if not own:
            continue
        code = f"{bug.defective[0]} → {bug.fixed[0].split('==')[1]}" if bug.is_real else "re-created"
        answers = " / ".join(_word(one) for one in own)
        also = sorted({check for one in own for check, found in one.checks.items() if found})
        also += ["compare"] * any(one.compare.verdict not in _NO_FAULT for one in own)
        seconds = sum(one.locate.seconds for one in own) / len(own)
        commands = "2" if all(one.place and one.place.is_first for one in own) else "-"
        yield (
            f"| {name} | {bug.kind.value} | [{bug.report}]({url_of(bug.report)}) | {code} | {bug.half.value} "
            f"| {answers} | {', '.join(also) or '-'} | {commands} | {seconds:.1f} |"
        )


def _peers(bugs: Mapping[str, Bug], results: Iterable[Result]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Result]] = {}
    for one in results:
        if one.peers:
            groups.setdefault((bugs[one.name].half.value, one.kernels), []).append(one)
    yield "Detected, and first place right, of the pairs that peers were asked about:"
    yield ""
    yield f"| bugs | kernels | number | msprobe locate | {' | '.join(PEERS)} |"
    yield "|---|---|---|---|---|---|---|"
    for (name, kernels), own in sorted(groups.items()):
        ours = [(one.place.detected, one.place.is_first) for one in own if one.place]
        cells = [ours]
        for peer in PEERS:
            answers = [one.peers[peer] for one in own if peer in one.peers]
            cells.append([(answer.verdict not in _NO_FAULT, answer.is_first) for answer in answers])
        counts = " | ".join(f"{sum(d for d, _ in cell)}, {sum(f for _, f in cell)}" if cell else "-" for cell in cells)
        yield f"| {name} | {kernels} | {len(own)} | {counts} |"


def _places_of_peers(bugs: Mapping[str, Bug], results: Sequence[Result]) -> Iterator[str]:
    yield f"| bug: same / other kernels | msprobe locate | {' | '.join(PEERS)} |"
    yield "|---|---|---|---|---|"
    for name in bugs:
        own = sorted((one for one in results if one.name == name), key=lambda one: one.kernels != "same")
        if any(one.peers for one in own):
            cells = [" / ".join(_word(one) for one in own)]
            cells += [" / ".join(_word_of_peer(one.peers.get(peer)) for one in own) for peer in PEERS]
            yield f"| {name} | {' | '.join(cells)} |"
    if left := sorted({one.name for one in results if not one.peers} - {one.name for one in results if one.peers}):
        yield f"\nPeers were not asked about: {'; '.join(left)}."


def _word_of_peer(answer: PeerAnswer | None) -> str:
    if answer is None:
        return "-"
    if answer.verdict in _NO_FAULT:
        return "missed" if answer.verdict == "agree" else answer.verdict
    return "**first**" if answer.is_first else "elsewhere"


def _word(one: Result) -> str:
    if not one.changes:
        return "no effect"
    if one.place is None or not one.place.detected:
        return "missed" if one.locate.verdict == "agree" else one.locate.verdict
    if one.place.is_first:
        return "**first**"
    return "among five" if one.place.is_in_top_five else "elsewhere"


def _misses(bugs: Mapping[str, Bug], results: Iterable[Result]) -> Iterator[str]:
    yield "First place not right:"
    yield ""
    for one in results:
        if one.place is not None and not one.place.is_first:
            first = one.locate.suspects[0] if one.locate.suspects else None
            what = f"{first.entry} (step {first.step}): {first.kind}, {first.reason}" if first else one.locate.verdict
            bug = bugs[one.name]
            yield f"* {one.name} ({bug.half.value}, {one.kernels} kernels), in {bug.place}: {what[:240]}"


def _healthy(results: Sequence[Result]) -> Iterator[str]:
    yield "| healthy pair | bitwise equal | locate | compare | calls judged | beyond their limit |"
    yield "|---|---|---|---|---|---|"
    for one in results:
        yield (
            f"| {one.name} | {_MARKS[not one.changes]} | {one.locate.verdict} | {one.compare.verdict} "
            f"| {one.locate.num_nodes:,} | {one.locate.num_flagged:,} |"
        )
    false = sum(one.locate.verdict != "agree" for one in results)
    yield f"\nCalled faulty by locate: {false} of {len(results)}."
    for peer in PEERS:
        answers = [one.peers[peer].verdict for one in results if peer in one.peers]
        if answers:
            yield f"Called faulty by {peer}: {sum(one not in _NO_FAULT for one in answers)} of {len(answers)}."
    left = [pair.name for pair in HEALTHY if all(one.name != pair.name for one in results)]
    if left and results:
        yield f"\nListed, and not run: {'; '.join(left)}."
    faulty = [(one, one.locate.suspects[0]) for one in results if one.locate.verdict != "agree" and one.locate.suspects]
    yield from [""] * bool(faulty)
    for one, first in faulty:
        yield f"* {one.name}: {first.entry} (step {first.step}): {first.kind}, {first.reason[:240]}"
