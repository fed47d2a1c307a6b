"""Declared differences of layout: the user's rules for tensors with the same numbers in another arrangement."""
