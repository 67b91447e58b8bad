"""Factors of GPUs and software stacks that one-GPU rows say, with any source left out."""
