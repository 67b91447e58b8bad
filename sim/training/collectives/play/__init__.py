"""How does a collective progress on a network that it shares with other traffic? Executors, and the transfers that one of them plays."""
