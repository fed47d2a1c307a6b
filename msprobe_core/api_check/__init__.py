"""Check every recorded call of one dump by itself: is its result right for these inputs, without a second run.

Each call is replayed in float64, and what round-off explains of its error is measured, as `msprobe confirm` does for a
pair. A verdict has its power: which plainly wrong results would have passed as well.
"""
