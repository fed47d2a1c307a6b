"""``python -m msprobe_core``: the command line of a clone that is not installed."""

from msprobe_core.cli import main

main()
