"""What is measured on a machine: one file a probe, each a few questions asked one by one."""
