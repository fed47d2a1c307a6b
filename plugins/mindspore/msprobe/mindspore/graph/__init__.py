"""Records Cells in static graphs (GRAPH_MODE and ``jit``), forward and backward, by points compiled into the graph."""
