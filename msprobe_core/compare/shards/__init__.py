"""Several ranks as one: shards are assembled, summed or unified to the tensors of one process; replicas are checked."""
