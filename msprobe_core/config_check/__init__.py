"""Whether two runs are the same run: their manifests and packs compared, and which differences matter."""
