"""``python -m bench.faults``."""

from bench.faults.runner import main

main()
