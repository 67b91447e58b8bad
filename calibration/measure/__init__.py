"""What a machine does: probes and training steps, timed on every rank, and the record they go into."""
