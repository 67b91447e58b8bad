"""Which links does a collective load, and how long does it take without contention? Closed forms and recurrences, no simulation."""
