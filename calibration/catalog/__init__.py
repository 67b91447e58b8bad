"""Factors of GPUs and software stacks, fitted to one-GPU rows with any source left out."""
