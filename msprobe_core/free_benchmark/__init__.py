"""The task ``free_benchmark``: repeats calls of a training with perturbed inputs, without a golden run."""
