"""Graphs of operations while they run: what communicators pay for their messages, and the simulation of every rank."""
