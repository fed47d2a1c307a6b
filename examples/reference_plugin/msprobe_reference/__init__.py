"""See `msprobe_reference.hooks`."""
