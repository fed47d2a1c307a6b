"""Two jobs that record while they train: the first step and call in which they disagree, while both run."""
