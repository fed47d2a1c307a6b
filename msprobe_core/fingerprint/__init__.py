"""Fingerprints of tensors that add up over shards: a 64-bit hash, and a sketch that estimates distances.

Both are defined once, for the arrays of any library; see `msprobe_core.fingerprint.arrays`.
"""
