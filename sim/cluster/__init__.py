"""What is the machine made of? GPUs, links, disks, caches and hosts in simulated time; this package knows nothing about training."""
