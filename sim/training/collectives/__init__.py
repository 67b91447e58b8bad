"""How do ranks combine their gradients? Routes on the link graph, what NCCL chooses, what that costs alone, and how it is played."""
