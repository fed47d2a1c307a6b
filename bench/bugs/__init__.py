"""A benchmark of published bugs, by which a precision debugger is judged: ``python -m bench.bugs --help``."""
