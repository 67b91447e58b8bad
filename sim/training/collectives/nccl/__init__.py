"""What would NCCL choose? Its constants, protocols, search and tuner, following its source; independent of the simulated network."""
