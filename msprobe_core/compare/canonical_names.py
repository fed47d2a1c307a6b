"""Canonical names of calls: one name for calls that two programs or frameworks name differently.

A name becomes canonical in two steps: the user's file translates it to the golden dump's name, then the map of that
name's framework translates it to the canonical one. Modules are identified by their path alone, unless a path has
several classes, so that a renamed class does no harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msprobe_core import names
from msprobe_core.compare.map_files import SPREAD
from msprobe_core.compare.mapping import ApiRule, Matching, Rule
from msprobe_core.compare.pairing_codes import PairingCode
from msprobe_core.findings import Finding
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.trainers import ApiMap

OUTSIDE = "(around the model)"
"""Path of the root if the other side's root is a module inside it."""

TOP_LAYERS = ("TopLayer", "Cell")
"""Names in layer files for the scope of the outermost modules; the second is used by older releases."""

ONLY_TARGET = "only target: "
"""Prefix for the place of an argument or result that a rule of the user leaves without partner."""


@dataclass(frozen=True)
class Words:
    """Names used by one side's framework.

    Attributes:
        map: Map from its names to canonical ones.
        is_foreign: Whether the other side is of another framework, so that one operation may have several spellings.
    """

    map: ApiMap
    is_foreign: bool = False

    def api(self, stem: str) -> str:
        """Return the canonical name of an API; between frameworks, that of its operation."""
        found = self._listed(stem, self.map.apis)
        if found is None:
            prefix, name = names.split_api(stem)
            found = f"{self.map.prefixes.get(prefix, prefix)}.{name}"
        if not self.is_foreign:
            return found
        operation = operation_of(found)
        return self.map.apis.get(operation, operation)

    def arguments(self, stem: str) -> Mapping[str, str] | None:
        """Return the canonical places of an API's arguments by own place; ``None`` if they are equal."""
        if not self.map.arguments:
            return None
        found = self._listed(stem, self.map.arguments)
        return found if found is not None else self.map.arguments.get(self.api(stem))

    def _listed(self, stem: str, listed: Mapping[str, _T]) -> _T | None:
        found = listed.get(stem)
        if found is None and stem.count(".") > 1:
            found = listed.get(f"{names.split_api(stem)[0]}.{base_of(stem)}")
        return found


_T = TypeVar("_T")

_SPELLED = frozenset({"Torch", "Tensor", "Functional"})
"""Prefixes under which one operation may be recorded."""

_OPERATORS = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "__sub__": "sub", "__isub__": "sub", "__rsub__": "rsub",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "__truediv__": "div", "__itruediv__": "div",
    "__div__": "div", "__rtruediv__": "rdiv", "__rdiv__": "rdiv", "__floordiv__": "floor_divide",
    "__ifloordiv__": "floor_divide", "__mod__": "remainder", "__imod__": "remainder", "__pow__": "pow",
    "__ipow__": "pow", "__rpow__": "rpow", "__matmul__": "matmul", "__imatmul__": "matmul", "__neg__": "neg",
    "__pos__": "positive", "__abs__": "abs", "__invert__": "bitwise_not", "__and__": "bitwise_and",
    "__iand__": "bitwise_and", "__or__": "bitwise_or", "__ior__": "bitwise_or", "__xor__": "bitwise_xor",
    "__ixor__": "bitwise_xor", "__lshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift",
    "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge", "__eq__": "eq", "__ne__": "ne",
}  # fmt: skip


def operation_of(name: str) -> str:
    """Return the operation of an API, whether it is a function, a method, an operator or works in place.

    ``Torch.add``, ``Tensor.add_`` and ``Tensor.__iadd__`` are ``add``; ``Distributed.all_reduce`` stays unchanged.
    """
    prefix, base = names.split_api(name)
    if prefix not in _SPELLED:
        return name
    if base.startswith("__"):
        return _OPERATORS.get(base, base)
    return base.rstrip("_")


class Names:
    """The names of one side.

    Attributes:
        words: Names used by its framework.
        used: The user's rules that have matched, by position in the file and name.
        wrapper: Path of the module around those that the other side has too; empty if there is none.
    """

    def __init__(self, words: Words) -> None:
        self.words = words
        self.used: set[tuple[str, str]] = set()
        self.wrapper = ""

    def path_of(self, stem: str) -> str:
        """Return the path by which a module is identified."""
        return self.without_wrapper(self.own_path(stem))

    def own_path(self, stem: str) -> str:
        """Return that path including the wrapper."""
        return names.split_module(stem)[1]

    def without_wrapper(self, path: str) -> str:
        """Return a path relative to the wrapper; paths outside of it stay unchanged."""
        if not self.wrapper:
            return path
        if path == self.wrapper:
            return ""
        if path == "":
            return OUTSIDE
        return path.removeprefix(f"{self.wrapper}.")

    def type_of(self, stem: str) -> str:
        """Return the canonical class of a module."""
        type_name = names.split_module(stem)[2]
        return self.words.map.module_types.get(type_name, type_name)

    def api_of(self, stem: str, scope: str) -> str:
        """Return the name by which an API is identified; ``scope``: own path of the enclosing module."""
        del scope
        return self.words.api(stem)

    def is_named(self, stem: str) -> bool:
        """Whether a file of the user names an API's partner."""
        del stem
        return False

    def place(self, stem: str, phase: str, role: str, place: str) -> str:
        """Return the canonical place of a value in a call: position, keyword, or name of a parameter."""
        head, _, rest = place.partition(".")
        if role in {Role.PARAMETERS.value, Role.PARAMETERS_GRAD.value}:
            return self._parameter(stem, place)
        if _is_argument(phase, role) and (order := self.words.arguments(stem)):
            return _placed(order, head, rest)
        return place

    def has_places(self) -> bool:
        """Whether any place is named differently."""
        return bool(self.words.map.parameters or self.words.map.arguments)

    def _parameter(self, stem: str, place: str) -> str:
        type_name = names.split_module(stem)[2]
        for kind in (type_name, ""):
            canonical = self.words.map.parameters.get(kind, {}).get(place)
            if canonical is not None:
                return canonical
        return place


def _placed(order: Mapping[str, str], head: str, rest: str) -> str:
    """Return the canonical place of an argument, or of an element of one, such as ``1.0`` of ``x.reshape((2, 3))``."""
    if rest.isdecimal() and order.get(SPREAD) == head:
        return str(int(head) + int(rest))
    return ".".join(filter(None, (order.get(head, head), rest)))


def _is_argument(phase: str, role: str) -> bool:
    """Whether a value is an argument or its gradient; others are results and their gradients."""
    return (role == Role.INPUT.value) == (phase == Phase.FORWARD.value)


class TranslatedNames(Names):
    """The names of the target, translated by the user's files."""

    def __init__(self, words: Words, golden: Words, cells: Sequence[Rule], apis: Sequence[ApiRule]) -> None:
        super().__init__(words)
        self.golden_wrapper = ""
        self._golden = golden
        self._cells = [(_without_prefix(rule.target), _without_prefix(rule.golden), rule) for rule in cells]
        self._exact = {target: (golden, rule) for target, golden, rule in self._cells}
        self._apis = {rule.target: rule for rule in apis}

    def path_of(self, stem: str) -> str:
        """Return the path by which a module is identified."""
        translated = self._cell(stem)
        if translated is None:
            return super().path_of(stem)
        path = names.split_module(translated)[1]
        # Names in the file are the golden dump's, which include its wrapper.
        return path.removeprefix(f"{self.golden_wrapper}.") if self.golden_wrapper else path

    def own_path(self, stem: str) -> str:
        """Return that path including the wrapper."""
        return names.split_module(self._cell(stem) or stem)[1]

    def type_of(self, stem: str) -> str:
        """Return the canonical class of a module."""
        translated = self._cell(stem)
        if translated is None:
            return super().type_of(stem)
        type_name = names.split_module(translated)[2]
        return self._golden.map.module_types.get(type_name, type_name)

    def api_of(self, stem: str, scope: str) -> str:
        """Return the name by which an API is identified."""
        rule = self._api(stem)
        return super().api_of(stem, scope) if rule is None else self._golden.api(rule.golden)

    def is_named(self, stem: str) -> bool:
        """Whether a file of the user names an API's partner."""
        return stem in self._apis

    def place(self, stem: str, phase: str, role: str, place: str) -> str:
        """Return the canonical place of a value in a call."""
        rule = self._api(stem)
        if rule is None or role in {Role.PARAMETERS.value, Role.PARAMETERS_GRAD.value}:
            return super().place(stem, phase, role, place)
        is_argument = _is_argument(phase, role)
        listed = rule.arguments if is_argument else rule.outputs
        if listed is None and self.words.arguments(stem) is not None:
            return super().place(stem, phase, role, place)
        head, dot, rest = place.partition(".")
        if listed is not None and head not in listed:
            return f"{ONLY_TARGET}{place}"
        head = head if listed is None else listed[head]
        order = self._golden.arguments(rule.golden) if is_argument else None
        return _placed(order, head, rest) if order else head + dot + rest

    def has_places(self) -> bool:
        """Whether any place is named differently."""
        return super().has_places() or bool(self._apis) or bool(self._golden.map.arguments)

    def _api(self, stem: str) -> ApiRule | None:
        rule = self._apis.get(stem)
        if rule is not None:
            self._note(rule)
        return rule

    def _cell(self, stem: str) -> str | None:
        """Return the golden dump's name for a module, by the first rule of the best match; ``None`` without a match."""
        rest = _without_prefix(stem)
        if rest in self._exact:
            golden, rule = self._exact[rest]
            self._note(rule)
            return f"Module.{golden}"
        # Prefer matches of whole name parts to parts of words: "fc1.Dense" should not match inside "xfc1.Dense".
        for edge in (".", ""):
            whole = f"{edge}{rest}{edge}"
            for target, golden, rule in self._cells:
                if (part := f"{edge}{target}{edge}") in whole:
                    self._note(rule)
                    return "Module." + whole.replace(part, f"{edge}{golden}{edge}", 1).strip(".")
        return None

    def _note(self, rule: Rule) -> None:
        self.used.add((rule.where, rule.target))


def _without_prefix(stem: str) -> str:
    prefix, _, rest = stem.partition(".")
    return rest if prefix in names.MODULE_PREFIXES and rest else stem


class LayerNames(Names):
    """Names by position in the nesting of modules: an API is identified by its layer and its name without prefix."""

    def __init__(
        self,
        inner: Names,
        rules: Mapping[str, Sequence[Rule]],
        classes: Mapping[str, str],
        golden_bases: Mapping[str, str],
    ) -> None:
        """Translate the paths of one side.

        Args:
            inner: Provides canonical names of APIs.
            rules: Rules by class of the enclosing module.
            classes: Class of each module by its path.
            golden_bases: Canonical name without prefix, for the golden dump's APIs, by own name without prefix.
        """
        super().__init__(inner.words)
        self.used = inner.used
        self._inner = inner
        self._classes = classes
        self._golden_bases = golden_bases
        self._rules = {
            name: sorted(((tuple(rule.target.split(".")), rule) for rule in own), key=lambda item: -len(item[0]))
            for name, own in rules.items()
        }
        self._known: dict[str, tuple[str, bool]] = {}

    def own_path(self, stem: str) -> str:
        """Return that path including the wrapper."""
        return self._translated(names.split_module(stem)[1])[0]

    def type_of(self, stem: str) -> str:
        """Return the canonical class of a module."""
        return self._inner.type_of(stem)

    def api_of(self, stem: str, scope: str) -> str:
        """Return the name by which an API is identified."""
        path, by_rule = self._translated(f"{scope}.{base_of(stem)}" if scope else base_of(stem))
        layer, _, base = path.rpartition(".")
        layer = self.without_wrapper(layer)
        base = self._golden_bases.get(base, base) if by_rule else base_of(self._inner.api_of(stem, scope))
        return f"{layer}/{base}"

    def is_named(self, stem: str) -> bool:
        """Whether a file of the user names an API's partner."""
        return self._inner.is_named(stem)

    def place(self, stem: str, phase: str, role: str, place: str) -> str:
        """Return the canonical place of a value in a call."""
        return self._inner.place(stem, phase, role, place)

    def has_places(self) -> bool:
        """Whether any place is named differently."""
        return self._inner.has_places()

    def _translated(self, path: str) -> tuple[str, bool]:
        """Return the golden dump's path for a path, and whether a rule has translated its last part."""
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._translate(tuple(path.split(".")) if path else ())
        return known

    def _translate(self, parts: tuple[str, ...]) -> tuple[str, bool]:
        found: list[str] = []
        by_rule = False
        position = 0
        while position < len(parts):
            rule = self._rule_at(parts, position)
            by_rule = rule is not None
            if rule is None:
                found.append(parts[position])
                position += 1
            else:
                key, named = rule
                self.used.add((named.where, named.target))
                found += named.golden.split(".")
                position += len(key)
        return ".".join(found), by_rule

    def _rule_at(self, parts: tuple[str, ...], position: int) -> tuple[tuple[str, ...], Rule] | None:
        own = self._classes.get(".".join(parts[:position]))
        for name in (own, *TOP_LAYERS) if position == 0 else (own,):
            for key, rule in self._rules.get(name or "", ()):
                if parts[position : position + len(key)] == key:
                    return key, rule
        return None


def base_of(stem: str) -> str:
    """Return the last part of an API's name, which frameworks share more often than the rest."""
    return stem.rpartition(".")[2]


@dataclass(frozen=True)
class Naming:
    """How to read the names of both sides.

    Attributes:
        target: The target's names.
        golden: The golden dump's names.
        is_plain: Whether both sides' own names are the canonical ones.
        is_foreign: Whether the two are of different frameworks.
        knows_both: Whether plugins have a map for both frameworks.
        needs_scopes: Whether the enclosing module is part of a name.
        notes: Notes on the maps.
    """

    target: Names
    golden: Names
    is_plain: bool
    is_foreign: bool
    knows_both: bool
    needs_scopes: bool
    notes: list[Finding]
    rules: Sequence[Rule]

    def unused(self) -> list[Finding]:
        """Return a note on rules without a match; valid after all names have been looked up."""
        used = self.target.used
        return note_unused([rule for rule in self.rules if (rule.where, rule.target) not in used], len(self.rules))


def note_unused(unused: Sequence[Rule], total: int, wanted: str = "anything in the target") -> list[Finding]:
    """Return the note on rules that do not match ``wanted``."""
    if not unused:
        return []
    first = {"first": repr(unused[0].target), "where": unused[0].where}
    fields = {"wanted": wanted, "count": len(unused), "total": total, **first}
    return [Finding(PairingCode.NAMES_UNUSED, fields=fields)]


def naming_of(
    matching: Matching,
    frameworks: tuple[str, str],
    maps: Mapping[str, ApiMap],
    stems: tuple[Collection[str], Collection[str]],
    *,
    is_foreign: bool,
) -> Naming:
    """Return how to read two dumps.

    Args:
        matching: The user's options.
        frameworks: Names in the headers of target and golden.
        maps: Maps that plugins offer, by framework.
        stems: All names of calls of target and golden, without numbers.
        is_foreign: Whether the two spell one operation differently; see `msprobe_core.compare.tools.are_foreign`.
    """
    notes: list[Finding] = []
    words = [Words(maps.get(framework, ApiMap(name=framework)), is_foreign) for framework in frameworks]
    if is_foreign:
        notes += [
            Finding(PairingCode.NO_MAP, fields={"framework": framework})
            for framework in frameworks
            if framework not in maps
        ]
    apis = _turned(matching.apis or (), stems, notes)
    cells = matching.cells or ()
    target: Names = TranslatedNames(words[0], words[1], cells, apis) if cells or apis else Names(words[0])
    golden = Names(words[1])
    rules: list[Rule] = [*cells, *apis]
    if matching.layers is not None:
        bases = {base_of(stem): base_of(words[1].api(stem)) for stem in stems[1] if not names.is_module(stem)}
        classes = {path: name for _, path, name in map(names.split_module, filter(names.is_module, stems[0]))}
        target = LayerNames(target, matching.layers, classes, bases)
        golden = LayerNames(golden, {}, {}, {})
        rules += [rule for own in matching.layers.values() for rule in own]
    if is_foreign:
        notes += _enter_wrappers((target, golden), stems)
    return Naming(
        target=target,
        golden=golden,
        is_plain=not matching.renames and words[0] == words[1],
        is_foreign=is_foreign,
        knows_both=all(framework in maps for framework in frameworks),
        needs_scopes=matching.layers is not None,
        notes=notes,
        rules=rules,
    )


_MAX_WRAPPERS = 3
"""Maximum number of modules around the one that is the root of the other side."""


def _enter_wrappers(sides: Sequence[Names], stems: Sequence[Collection[str]]) -> list[Finding]:
    """Set the ``wrapper`` of each side so that as many paths as possible are equal; return notes.

    One program may wrap its network, for example in a module with its loss, so that all paths have an additional part.
    """
    paths = [
        {side.own_path(stem) for stem in own if names.is_module(stem)} for side, own in zip(sides, stems, strict=True)
    ]
    chosen = common_wrappers(paths[0], paths[1])
    told: list[Finding] = []
    for side, wrapper, name in zip(sides, chosen, ("target", "golden dump"), strict=True):
        side.wrapper = wrapper
        if isinstance(side, TranslatedNames):
            side.golden_wrapper = chosen[1]
        if wrapper:
            told.append(Finding(PairingCode.WRAPPED, fields={"side": name, "wrapper": wrapper}))
    return told


def common_wrappers(target: Collection[str], golden: Collection[str]) -> tuple[str, str]:
    """Return the module of each side within which most paths are equal; empty if that is the outermost one.

    Args:
        target: Paths of modules.
        golden: See ``target``.
    """
    best, chosen = len({*target} & {*golden}), ("", "")
    of_golden = _wrappers(golden)
    for own in _wrappers(target):
        seen = _within(target, own)
        for other in of_golden:
            shared = len(seen & _within(golden, other))
            if shared > best:
                best, chosen = shared, (own, other)
    return chosen


def _wrappers(paths: Collection[str]) -> list[str]:
    """Return candidates for a wrapper of most paths, the shortest first; the first one is none."""
    counts: Counter[str] = Counter()
    for path in paths:
        parts = path.split(".")
        counts.update(".".join(parts[:number]) for number in range(1, min(len(parts), _MAX_WRAPPERS + 1)))
    found = [wrapper for wrapper, number in counts.items() if 2 * number > len(paths)]
    return ["", *sorted(found, key=len)]


def _within(paths: Collection[str], wrapper: str) -> set[str]:
    if not wrapper:
        return set(paths)
    return {"" if path == wrapper else path.removeprefix(f"{wrapper}.") for path in paths if path}


def _turned(
    rules: Sequence[ApiRule], stems: tuple[Collection[str], Collection[str]], notes: list[Finding]
) -> Sequence[ApiRule]:
    """Return the rules with sides exchanged if they match the two dumps better that way."""
    given = sum((rule.target in stems[0]) + (rule.golden in stems[1]) for rule in rules)
    turned = sum((rule.golden in stems[0]) + (rule.target in stems[1]) for rule in rules)
    if turned <= given:
        return rules
    notes.append(Finding(PairingCode.TURNED, fields={"file": rules[0].where.rpartition(", line")[0]}))
    return [
        ApiRule(rule.golden, rule.target, rule.where, _inverted(rule.arguments), _inverted(rule.outputs))
        for rule in rules
    ]


def _inverted(places: Mapping[str, str] | None) -> Mapping[str, str] | None:
    return None if places is None else {golden: target for target, golden in places.items()}
