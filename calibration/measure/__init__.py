"""How fast is a machine? Probes and training steps, timed on every rank, and the record that holds the results."""
