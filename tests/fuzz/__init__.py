"""Fuzzers of all readers: `python -m fuzz`, see `__main__`."""
