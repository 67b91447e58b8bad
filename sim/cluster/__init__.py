"""What machine is that? GPUs, links, disks, caches and hosts as they live in simulated time; knows nothing of training."""
