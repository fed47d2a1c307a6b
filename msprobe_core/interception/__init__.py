"""What framework plugins build on: public, and the only part of this room that plugins import from.

It reports calls to a `msprobe_core.plugin.CallRecorder` and knows nothing of recording itself. A plugin adds what its
framework does differently.

* Patches replace functions while something observes them, and restore them. `FunctionPatch` hands each call to a
  handler, `Patches` installs several or none, `AliasSearch` finds functions that others have imported by name.
* What is installed for a window: `Removal` calls a function in ``detach``, and `NothingPending` is the base of what
  has a ``detach`` of its own; the rest of `msprobe_core.plugin.Removable` does nothing.
* Calls of APIs: `ApiCalls` records the outermost API call of each thread, from its inputs to its gradients;
  `PlacedAttachment` is an `Attachment` that installs and removes what it is given. `Owners` attributes calls outside of
  modules to an optimizer or to gradient clipping.
* Calls of modules: `ModuleCalls` records a module through its forward hooks; `WatchHooks` serves a `CallWatcher`.
* Modules in a finer format: `RaisingModules` is a `msprobe_core.plugin.RaisedModules` but for what a framework casts.
* Gradients: `GraphGradients` reads the gradients of a call from hooks on the nodes of a dynamic graph.
* Communication: `PendingWorks` records the results of asynchronous calls when they have been waited for; the tables
  name functions of ``torch.distributed``.
* Values on the host: `HostReducer` is a `Reducer` for `HostValues`, tensors whose elements are a NumPy array.
* Random functions: `RandomWatch` passes each call of a random function to a callback, `RandomLog` writes them to a
  file; `Seeding` and `seed_common` are what ``seed_all`` has in common everywhere.
* Perturbation: `ModuleNoise` and `relative_changes` implement `PerturbingFramework.perturb`; `map_values`,
  `named_tensors` and `value_leaves` go through the tensors of nested arguments and results.
* Replays: `build_arguments` and `tensors_by_path` implement `ReplayingFramework.replay`, and `call_text` with what is
  beside it `ScriptingFramework.script`.

Names are imported on first use.
"""

from typing import TYPE_CHECKING

from msprobe_core.lazy import lazy_names

if TYPE_CHECKING:
    from msprobe_core.interception.apis import ApiCalls, Inside, tensors_in
    from msprobe_core.interception.attachment import PlacedAttachment
    from msprobe_core.interception.call_scope import Owners, is_clipping
    from msprobe_core.interception.communication import (
        ALWAYS_ASYNCHRONOUS,
        RECEIVES,
        SENDS,
        UNSET_INPUTS,
        Describer,
        Pending,
        PendingWorks,
    )
    from msprobe_core.interception.gradients import GraphGradients, Node
    from msprobe_core.interception.host_reducer import (
        BFLOAT16,
        HostReducer,
        HostValues,
        real_vector,
        statistics_of,
        sums_of_integers,
    )
    from msprobe_core.interception.modules import (
        After,
        Before,
        FoundModule,
        Handle,
        Hook,
        ModuleCalls,
        WatchHooks,
        observe_by_hooks,
        register_after,
    )
    from msprobe_core.interception.patching import (
        AliasSearch,
        Function,
        FunctionPatch,
        Handler,
        Patch,
        Patches,
        original_of,
    )
    from msprobe_core.interception.perturbation import (
        FLIPPED,
        ModuleNoise,
        converted,
        map_values,
        named_tensors,
        relative_changes,
        value_leaves,
    )
    from msprobe_core.interception.raised_precision import COARSER, RaisingModules
    from msprobe_core.interception.randomness import (
        RandomCall,
        RandomFunction,
        RandomLog,
        RandomState,
        RandomStates,
        RandomWatch,
        Repeat,
        common_states,
    )
    from msprobe_core.interception.removal import NothingPending, Removal
    from msprobe_core.interception.replaying import (
        NOT_SPECIAL,
        build_arguments,
        literal_of,
        tensors_by_path,
        why_not_called,
    )
    from msprobe_core.interception.result_replacement import FixingCalls
    from msprobe_core.interception.scripting import (
        call_text,
        literal,
        may_write,
        script_leaves,
        script_tensors,
        source_of,
    )
    from msprobe_core.interception.seeding import Seeding, seed_common
    from msprobe_core.names import CLIP_GRAD, OPTIMIZER, module_stem
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "msprobe_core.interception.apis": "ApiCalls Inside tensors_in",
            "msprobe_core.interception.attachment": "PlacedAttachment",
            "msprobe_core.interception.call_scope": "Owners is_clipping",
            "msprobe_core.interception.communication": (
                "ALWAYS_ASYNCHRONOUS Describer Pending PendingWorks RECEIVES SENDS UNSET_INPUTS"
            ),
            "msprobe_core.interception.result_replacement": "FixingCalls",
            "msprobe_core.interception.gradients": "GraphGradients Node",
            "msprobe_core.interception.host_reducer": (
                "BFLOAT16 HostReducer HostValues real_vector statistics_of sums_of_integers"
            ),
            "msprobe_core.interception.modules": (
                "After Before FoundModule Handle Hook ModuleCalls WatchHooks observe_by_hooks register_after"
            ),
            "msprobe_core.interception.patching": (
                "AliasSearch Function FunctionPatch Handler Patch Patches original_of"
            ),
            "msprobe_core.interception.perturbation": (
                "FLIPPED ModuleNoise converted map_values named_tensors relative_changes value_leaves"
            ),
            "msprobe_core.interception.raised_precision": "COARSER RaisingModules",
            "msprobe_core.interception.randomness": (
                "RandomCall RandomFunction RandomLog RandomState RandomStates RandomWatch Repeat common_states"
            ),
            "msprobe_core.interception.removal": "NothingPending Removal",
            "msprobe_core.interception.replaying": (
                "NOT_SPECIAL build_arguments literal_of tensors_by_path why_not_called"
            ),
            "msprobe_core.interception.scripting": "call_text literal may_write script_leaves script_tensors source_of",
            "msprobe_core.interception.seeding": "Seeding seed_common",
            "msprobe_core.names": "CLIP_GRAD OPTIMIZER module_stem",
        },
    )

__all__ = [  # noqa: RUF022  # by purpose
    # Patches
    "AliasSearch", "Function", "FunctionPatch", "Handler", "Patch", "Patches", "original_of",
    # What is installed for a window
    "NothingPending", "Removal",
    # Calls of APIs
    "ApiCalls", "Inside", "tensors_in", "PlacedAttachment", "Owners", "is_clipping", "CLIP_GRAD", "OPTIMIZER",
    # Calls of modules
    "After", "Before", "FoundModule", "Handle", "Hook", "ModuleCalls", "WatchHooks", "observe_by_hooks",
    "register_after", "module_stem",
    # Calls whose results are replaced
    "FixingCalls",
    # Modules in a finer format
    "COARSER", "RaisingModules",
    # Gradients
    "GraphGradients", "Node",
    # Communication
    "ALWAYS_ASYNCHRONOUS", "RECEIVES", "SENDS", "UNSET_INPUTS", "Describer", "Pending", "PendingWorks",
    # Values on the host
    "BFLOAT16", "HostReducer", "HostValues", "real_vector", "statistics_of", "sums_of_integers",
    # Random functions
    "RandomCall", "RandomFunction", "RandomLog", "RandomState", "RandomStates", "RandomWatch", "Repeat",
    "common_states", "Seeding", "seed_common",
    # Perturbation
    "FLIPPED", "ModuleNoise", "converted", "relative_changes", "map_values", "named_tensors", "value_leaves",
    # Replays
    "NOT_SPECIAL", "build_arguments", "literal_of", "tensors_by_path", "why_not_called",
    # Replays as scripts
    "call_text", "literal", "may_write", "script_leaves", "script_tensors", "source_of",
]  # fmt: skip
