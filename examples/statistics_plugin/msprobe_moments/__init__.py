"""See `msprobe_moments.hooks`."""
