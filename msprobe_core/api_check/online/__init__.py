"""The task ``acc_check``: checks calls of a training in its own process, between its steps."""
