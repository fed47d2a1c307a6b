"""Comparisons of recorded RL runs: log-probs, weights, modules and whole runs. Uses NumPy and polars, no framework."""
