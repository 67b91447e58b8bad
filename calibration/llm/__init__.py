"""Measured training runs of transformers: read a table, describe each run, predict it, and score the predictions."""
