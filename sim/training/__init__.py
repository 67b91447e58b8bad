"""What does each rank do during training? The training loop, data loaders, gradient buckets and collectives, in simulated time."""
