"""How do ranks combine their gradients? Rings found on the link graph, pure schedules, and what they cost alone."""
