"""Several ranks as one: shards assembled, summed or unified into the tensor that one process has; replicas checked."""
