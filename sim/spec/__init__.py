"""What did the user write? Typed, frozen descriptions of hardware, workloads and software stacks, in SI units."""
