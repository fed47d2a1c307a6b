"""Checkpoints of models: opened without their framework, put together from their shards, fingerprinted and compared."""
