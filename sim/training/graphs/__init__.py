"""Simulation of graphs of operations: the prices of messages, and the simulation of every rank."""
