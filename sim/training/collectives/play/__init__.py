"""How does a collective take its time on a network that others share? Executors, and the transfers that one of them plays."""
