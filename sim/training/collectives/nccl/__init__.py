"""What would NCCL choose? Its constants, protocols, search and tuner, as its source has them; nothing here knows simulated links."""
