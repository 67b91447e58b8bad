"""Measured collectives of other systems: predicted, scored, and the constants of transport classes."""
