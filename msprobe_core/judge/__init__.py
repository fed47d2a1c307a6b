"""First divergence of two runs: aligned rows are scored, scored rows form nodes, nodes show culprits; each once."""
