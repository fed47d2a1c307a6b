"""Executors of units of work: in this process, in other processes on this machine, or on a cluster."""
