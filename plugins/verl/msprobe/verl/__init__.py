"""verl for msprobe: every stage of RL training recorded without editing verl.

The environment variable ``MSPROBE_VERL`` switches it on, see ``docs/verl.md``. A custom serving engine calls::

    from msprobe.verl import Part, watch_engine

A trainer without a plugin of its own writes its batches, rewards and weights with `RunWriter`.
"""

from typing import TYPE_CHECKING

from msprobe.verl.hooks import __version__
from msprobe_core.plugin import lazy_names, refuse_shadowing

if TYPE_CHECKING:
    from msprobe.verl.rollout import EngineProbe, Part, watch_engine
    from msprobe_core.rl import RunWriter
else:
    __getattr__ = lazy_names(
        __name__, {"msprobe.verl.rollout": "EngineProbe Part watch_engine", "msprobe_core.rl": "RunWriter"}
    )

__all__ = ["EngineProbe", "Part", "RunWriter", "__version__", "watch_engine"]

refuse_shadowing()
