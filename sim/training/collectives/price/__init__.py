"""What does a collective put on which links, and how long does it take alone? Closed forms and recurrences, no simulated time."""
