"""Models that are the same in PyTorch and in MindSpore: what compare and locate say of healthy pairs and of faults."""
