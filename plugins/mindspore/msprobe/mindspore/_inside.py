"""Which calls nobody is to look at: those inside of a call that is being recorded, and our own."""

from __future__ import annotations

from msprobe_core.interception.apis import Inside

inside = Inside()
"""One for the process: functions are stood for by many, and what any of them runs is no call of the user's."""
