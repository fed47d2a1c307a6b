"""Cells in static graphs (GRAPH_MODE and ``jit``), forward and backward: by points that are compiled into the graph."""
