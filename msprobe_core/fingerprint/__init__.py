"""Fingerprints of tensors that add up over shards: a 64-bit hash, and a sketch of which distances can be read.

Both are defined here once, for the arrays of any library; see `msprobe_core.fingerprint.arrays`.
"""
