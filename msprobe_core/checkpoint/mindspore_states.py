"""Open checkpoints of MindSpore, and archives of NumPy arrays: one file with tensors by name.

MindSpore saves the states of its optimizers beside the parameters: ``moments.NAME`` and ``moment1.NAME`` of momentum
and Adam, ``moment2.NAME``, ``accum.NAME``; and ``global_step``, ``learning_rate``, ``epoch_num``, ``step_num``.
Source: ``nn/optim`` and ``train/callback/_checkpoint.py`` of MindSpore 2.10.
"""

from __future__ import annotations

import re

from msprobe_core.checkpoint.contents import CheckpointFormat, Kind
from msprobe_core.checkpoint.directory import Draft
from msprobe_core.checkpoint.optimizer_names import state_name
from msprobe_core.checkpoint.pieces import damaged, unreadable, whole
from msprobe_core.tensor_files.contents import FileContent

_MOMENTS = re.compile(r"(moments|moment1|moment2|adam_m|adam_v|accum|mean_square|mean_gradient|prev_grad)\.(.+)")
_STATES = re.compile(
    r"(global_step|learning_rate|beta[12]_power|epoch_num|step_num|scale_sense|current_iterator_step|last_overflow_.*)"
)


def add_identified(draft: Draft, content: FileContent) -> None:
    """Add the tensors of a file."""
    draft.count(content.path)
    if content.damage is not None:
        draft.notes.append(content.damage)
    draft.settings |= content.attributes
    is_mindspore = draft.form is CheckpointFormat.MINDSPORE
    for each in content.tensors:
        name, kind = mindspore_name(each.name) if is_mindspore else (each.name, Kind.WEIGHT)
        if each.source is not None and each.source.dtype != "text":
            draft.add(whole(name, each.source, content.path, kind=kind))
            if is_mindspore and each.name in ("step_num", "global_step") and not each.source.shape:
                draft.settings[each.name] = int(next(iter(each.source.chunks(1)))[0])
        elif each.source is None:
            damage = each.damage or unreadable(f"{content.path}: {each.name}")
            draft.add(damaged(name, damage, kind=kind))
    step = draft.settings.get("global_step", draft.settings.get("step_num"))
    draft.step = step if isinstance(step, int) else None


def mindspore_name(name: str) -> tuple[str, Kind]:
    """Return the name of a tensor, those of optimizers with the parameter's name, and what it is."""
    if found := _MOMENTS.fullmatch(name):
        return state_name(found[2], found[1]), Kind.MOMENT
    return name, Kind.STATE if _STATES.fullmatch(name) else Kind.WEIGHT
