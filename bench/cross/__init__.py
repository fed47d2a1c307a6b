"""Models that are equal in PyTorch and in MindSpore, to test compare and locate on healthy pairs and on faults."""
