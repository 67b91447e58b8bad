"""Measured collectives of other systems: their records, predictions and scores, and the constants of transport classes."""
