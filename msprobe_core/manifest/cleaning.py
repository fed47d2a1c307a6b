"""What a framework contributes to a manifest, without the secrets in it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap

from msgspec.structs import replace

from msprobe_core.manifest.facts import Group, Model, Module, Optimizer, RunFacts, Scalar
from msprobe_core.manifest.secrets import NOT_KEPT, cleaned, has_secret, is_secret_text


def without_secrets(facts: RunFacts) -> RunFacts:
    """Return what may be written: settings that look like secrets are replaced, as are names that do."""
    return replace(
        facts,
        switches=cleaned_settings(facts.switches),
        models=tuple(map(_model, facts.models)),
        optimizers=cleaned_optimizers(facts.optimizers),
        groups=tuple(_group(group) for group in facts.groups),
        settings=cleaned_settings(facts.settings),
    )


def cleaned_optimizers(optimizers: tuple[Optimizer, ...]) -> tuple[Optimizer, ...]:
    """Return optimizers without secrets among their settings."""
    return tuple(
        replace(
            one,
            defaults=cleaned_settings(one.defaults),
            groups=tuple(replace(group, settings=cleaned_settings(group.settings)) for group in one.groups),
        )
        for one in optimizers
    )


def cleaned_settings(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return settings without secrets among them."""
    return {NOT_KEPT if is_secret_text(name) else name: cleaned(name, value) for name, value in settings.items()}


def _model(model: Model) -> Model:
    return replace(model, settings=cleaned_settings(model.settings), modules=tuple(map(_module, model.modules)))


def _module(module: Module) -> Module:
    if not any(starmap(has_secret, module.settings.items())):
        return module
    return replace(module, settings=cleaned_settings(module.settings))


def _group(group: Group) -> Group:
    return replace(group, name=NOT_KEPT) if is_secret_text(group.name) else group
