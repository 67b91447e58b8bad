"""Profiles of training jobs: read, reported, and replayed elsewhere."""
