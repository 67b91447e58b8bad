"""What do ranks do? The training loop, its loaders, buckets, exchange and collectives, in simulated time."""
