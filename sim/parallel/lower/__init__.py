"""How do models, stacks and layouts become programs? Pure: no hardware, no seconds."""
