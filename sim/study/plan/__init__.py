"""The best layout of a model on a cluster: every layout there is, bounds on each, and simulation of those that may be best."""
