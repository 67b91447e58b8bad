"""Layouts while they train: what groups pay for their messages, how long units compute, and the simulation of one step."""
