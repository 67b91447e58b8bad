"""How do ranks combine data? Routes on the link graph, NCCL's choices, their cost without contention, and their simulation in time."""
