"""Gradients of two trainings: recorded per step as the task ``grad_probe`` does, and their similarity."""
