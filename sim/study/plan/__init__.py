"""Which layout of a model is best on a cluster? Every possible layout, bounds on each, and simulation of those that may be best."""
