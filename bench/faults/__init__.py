"""A benchmark of planted faults, by which a precision debugger is judged: ``python -m bench.faults --help``."""
