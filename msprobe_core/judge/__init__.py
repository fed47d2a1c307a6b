"""Where two runs diverge first: aligned rows to scored rows, scored rows to nodes, nodes to culprits, each once."""
