"""Proof on a device that the probe is right, changes nothing, does not wait and is cheap; see ``run.sh``."""
