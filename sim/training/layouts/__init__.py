"""Simulation of layouts: the prices of group messages, the compute times of units, and the simulation of one step."""
