"""Reductions of tensors on the host in C, which read each element once; everything works without them, more slowly."""
