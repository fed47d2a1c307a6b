"""The training monitor: statistics of a whole training, by step, rank and name, while it runs."""
