"""Published studies, done again in simulation: on the simulator's public parts, found by ``sim study`` through entry points."""
