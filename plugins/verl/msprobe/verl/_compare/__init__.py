"""Comparisons of recorded RL runs: of log-probs, weights, modules and whole runs. NumPy and polars, no framework."""
