"""How do models, stacks and layouts become programs? Pure: independent of hardware and time."""
