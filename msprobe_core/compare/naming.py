"""What calls are called: one name for what two programs, or two frameworks, call differently.

A name of either side becomes canonical in two steps: a file of the user's says what the golden dump calls it, then the
map of the framework whose name it is by now says what it is called canonically. Modules are known by their path alone,
unless a path has had several classes, so that a class which is called differently does no harm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from msprobe_core import names
from msprobe_core.compare.mapping import ApiRule, Matching, Rule
from msprobe_core.hookspecs import ApiMap
from msprobe_core.model import Phase, Role

TOP_LAYERS = ("TopLayer", "Cell")
"""What files of layers call the place that encloses the outermost modules; the second is of older releases."""


class Names:
    """The names of one side.

    Attributes:
        words: The map of the framework.
        used: The rules of the user's that have matched something, by place in the file and name.
    """

    def __init__(self, words: ApiMap) -> None:
        self.words = words
        self.used: set[tuple[str, str]] = set()

    def path_of(self, stem: str) -> str:
        """Return the path by which a module is known."""
        return names.split_module(stem)[1]

    def type_of(self, stem: str) -> str:
        """Return the canonical class of a module."""
        type_name = names.split_module(stem)[2]
        return self.words.module_types.get(type_name, type_name)

    def api_of(self, stem: str, scope: str) -> str:
        """Return the name by which an API is known; ``scope``: own path of the module that encloses the call."""
        del scope
        return canonical_api(self.words, stem)

    def place(self, stem: str, phase: str, role: str, place: str) -> str:
        """Return the canonical place of a value in a call: position, keyword, or name of a parameter."""
        head, dot, rest = place.partition(".")
        if role in {Role.PARAMETERS.value, Role.PARAMETERS_GRAD.value}:
            return self._parameter(stem, place)
        if _is_argument(phase, role) and (order := self.words.arguments.get(stem)):
            return order.get(head, head) + dot + rest
        return place

    def has_places(self) -> bool:
        """Whether any place is called differently."""
        return bool(self.words.parameters or self.words.arguments)

    def _parameter(self, stem: str, place: str) -> str:
        type_name = names.split_module(stem)[2]
        for kind in (type_name, ""):
            canonical = self.words.parameters.get(kind, {}).get(place)
            if canonical is not None:
                return canonical
        return place


def canonical_api(words: ApiMap, stem: str) -> str:
    """Return what a framework's map makes of an API."""
    if stem in words.apis:
        return words.apis[stem]
    prefix, name = names.split_api(stem)
    return f"{words.prefixes.get(prefix, prefix)}.{name}"


def _is_argument(phase: str, role: str) -> bool:
    """Whether a value is an argument or its gradient; the others are results and theirs."""
    return (role == Role.INPUT.value) == (phase == Phase.FORWARD.value)


class TranslatedNames(Names):
    """The names of the target, through the files of the user's."""

    def __init__(self, words: ApiMap, golden: ApiMap, cells: Sequence[Rule], apis: Sequence[ApiRule]) -> None:
        super().__init__(words)
        self._golden = golden
        self._cells = [(_without_prefix(rule.target), _without_prefix(rule.golden), rule) for rule in cells]
        self._exact = {target: (golden, rule) for target, golden, rule in self._cells}
        self._apis = {rule.target: rule for rule in apis}

    def path_of(self, stem: str) -> str:
        """Return the path by which a module is known."""
        return names.split_module(self._cell(stem) or stem)[1]

    def type_of(self, stem: str) -> str:
        """Return the canonical class of a module."""
        translated = self._cell(stem)
        if translated is None:
            return super().type_of(stem)
        type_name = names.split_module(translated)[2]
        return self._golden.module_types.get(type_name, type_name)

    def api_of(self, stem: str, scope: str) -> str:
        """Return the name by which an API is known."""
        rule = self._api(stem)
        return super().api_of(stem, scope) if rule is None else canonical_api(self._golden, rule.golden)

    def place(self, stem: str, phase: str, role: str, place: str) -> str:
        """Return the canonical place of a value in a call."""
        rule = self._api(stem)
        if rule is None or role in {Role.PARAMETERS.value, Role.PARAMETERS_GRAD.value}:
            return super().place(stem, phase, role, place)
        is_argument = _is_argument(phase, role)
        listed = rule.arguments if is_argument else rule.outputs
        if listed is None:
            return super().place(stem, phase, role, place)
        head, dot, rest = place.partition(".")
        if head not in listed:
            return f"only target: {place}"
        head = listed[head]
        order = self._golden.arguments.get(rule.golden) if is_argument else None
        return (order.get(head, head) if order else head) + dot + rest

    def has_places(self) -> bool:
        """Whether any place is called differently."""
        return super().has_places() or bool(self._apis) or bool(self._golden.arguments)

    def _api(self, stem: str) -> ApiRule | None:
        rule = self._apis.get(stem)
        if rule is not None:
            self._note(rule)
        return rule

    def _cell(self, stem: str) -> str | None:
        """Return what the golden dump calls a module, by the first rule that fits best; ``None`` if none does."""
        rest = _without_prefix(stem)
        if rest in self._exact:
            golden, rule = self._exact[rest]
            self._note(rule)
            return f"Module.{golden}"
        # Whole parts of the name before parts of words: "fc1.Dense" is no part of "xfc1.Dense" if it can be helped.
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
    """Names by place in the nesting of modules: an API is known by its layer and its name without prefix."""

    def __init__(
        self,
        inner: Names,
        rules: Mapping[str, Sequence[Rule]],
        classes: Mapping[str, str],
        golden_bases: Mapping[str, str],
    ) -> None:
        """Translate the paths of one side.

        Args:
            inner: Knows what the APIs are called canonically.
            rules: By class of the enclosing module.
            classes: Class of each module by its path.
            golden_bases: Canonical name without prefix, of the golden dump's APIs, by own name without prefix.
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

    def path_of(self, stem: str) -> str:
        """Return the path by which a module is known."""
        return self._translated(names.split_module(stem)[1])[0]

    def type_of(self, stem: str) -> str:
        """Return the canonical class of a module."""
        return self._inner.type_of(stem)

    def api_of(self, stem: str, scope: str) -> str:
        """Return the name by which an API is known."""
        path, by_rule = self._translated(f"{scope}.{base_of(stem)}" if scope else base_of(stem))
        layer, _, base = path.rpartition(".")
        base = self._golden_bases.get(base, base) if by_rule else base_of(self._inner.api_of(stem, scope))
        return f"{layer}/{base}"

    def place(self, stem: str, phase: str, role: str, place: str) -> str:
        """Return the canonical place of a value in a call."""
        return self._inner.place(stem, phase, role, place)

    def has_places(self) -> bool:
        """Whether any place is called differently."""
        return self._inner.has_places()

    def _translated(self, path: str) -> tuple[str, bool]:
        """Return a path as the golden dump has it, and whether a rule has given its last part."""
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
    """Return the last part of an API's name, which frameworks have in common more often than the rest."""
    return stem.rpartition(".")[2]


@dataclass(frozen=True)
class Naming:
    """How both sides are to be read.

    Attributes:
        target: The target's names.
        golden: The golden dump's names.
        is_plain: Whether both sides' own names are the canonical ones.
        needs_scopes: Whether the enclosing module is part of a name.
        notes: What there is to say about the maps.
    """

    target: Names
    golden: Names
    is_plain: bool
    needs_scopes: bool
    notes: list[str]
    rules: Sequence[Rule]

    def unused(self) -> list[str]:
        """Return a note on rules that have matched nothing; to be asked when all names have been asked for."""
        used = self.target.used
        return note_unused([rule for rule in self.rules if (rule.where, rule.target) not in used], len(self.rules))


def note_unused(unused: Sequence[Rule], total: int, wanted: str = "anything in the target") -> list[str]:
    """Return the note on rules that do not match what is ``wanted``."""
    if not unused:
        return []
    count, first = f"{len(unused)} of {total}", unused[0]
    return [f"names that do not match {wanted}: {count}; the first is {first.target!r} ({first.where})"]


def naming_of(
    matching: Matching,
    frameworks: tuple[str, str],
    maps: Mapping[str, ApiMap],
    stems: tuple[Collection[str], Collection[str]],
) -> Naming:
    """Return how to read two dumps.

    Args:
        matching: What the user asks for.
        frameworks: Of target and golden, as their headers have them.
        maps: What plugins offer, by framework.
        stems: All names of calls of target and golden, without numbers.
    """
    notes: list[str] = []
    words = [maps.get(framework, ApiMap(name=framework)) for framework in frameworks]
    if frameworks[0] != frameworks[1]:
        notes += [
            f"no plugin has a map of names for the framework '{framework}'; its names are taken as they are"
            for framework in frameworks
            if framework not in maps
        ]
    apis = _turned(matching.apis or (), stems, notes)
    cells = matching.cells or ()
    target: Names = TranslatedNames(words[0], words[1], cells, apis) if cells or apis else Names(words[0])
    golden = Names(words[1])
    rules: list[Rule] = [*cells, *apis]
    if matching.layers is not None:
        bases = {
            base_of(stem): base_of(canonical_api(words[1], stem)) for stem in stems[1] if not names.is_module(stem)
        }
        classes = {path: name for _, path, name in map(names.split_module, filter(names.is_module, stems[0]))}
        target = LayerNames(target, matching.layers, classes, bases)
        golden = LayerNames(golden, {}, {}, {})
        rules += [rule for own in matching.layers.values() for rule in own]
    return Naming(
        target=target,
        golden=golden,
        is_plain=not matching.renames and words[0] == words[1],
        needs_scopes=matching.layers is not None,
        notes=notes,
        rules=rules,
    )


def _turned(
    rules: Sequence[ApiRule], stems: tuple[Collection[str], Collection[str]], notes: list[str]
) -> Sequence[ApiRule]:
    """Return the rules the other way round, if that is how the two dumps have been given."""
    given = sum((rule.target in stems[0]) + (rule.golden in stems[1]) for rule in rules)
    turned = sum((rule.golden in stems[0]) + (rule.target in stems[1]) for rule in rules)
    if turned <= given:
        return rules
    notes.append(f"the names of {rules[0].where.rpartition(', line')[0]} are read from right to left: they fit so")
    return [
        ApiRule(rule.golden, rule.target, rule.where, _inverted(rule.arguments), _inverted(rule.outputs))
        for rule in rules
    ]


def _inverted(places: Mapping[str, str] | None) -> Mapping[str, str] | None:
    return None if places is None else {golden: target for target, golden in places.items()}
