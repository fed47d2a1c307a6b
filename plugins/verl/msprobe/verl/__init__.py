"""verl for msprobe: every stage of RL training recorded without editing verl.

The environment variable ``MSPROBE_VERL`` switches it on, see ``docs/verl.md``. A custom serving engine calls::

    from msprobe.verl import Part, watch_engine
"""

from typing import TYPE_CHECKING, Any

from msprobe.verl.hooks import __version__
from msprobe_core.plugins import refuse_shadowing

if TYPE_CHECKING:
    from msprobe.verl.rollout import EngineProbe, Part, watch_engine

__all__ = ["EngineProbe", "Part", "__version__", "watch_engine"]

refuse_shadowing()


def __getattr__(name: str) -> Any:
    if name in {"EngineProbe", "Part", "watch_engine"}:
        from msprobe.verl import rollout

        return getattr(rollout, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
