"""Declared differences of layout: what a user says of tensors that are the same numbers stored otherwise."""
