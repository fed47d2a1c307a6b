"""Files of training monitors: statistics of a training over steps, by rank, quantity and name."""
