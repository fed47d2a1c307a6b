"""Decide which side is wrong at a suspected call: the target, the golden run, or neither."""

from msprobe_core.confirm.engine import confirm
from msprobe_core.confirm.models import load_function, load_model
from msprobe_core.confirm.verdict import Cause, Confirmation, Side, Verdict

__all__ = ["Cause", "Confirmation", "Side", "Verdict", "confirm", "load_function", "load_model"]
