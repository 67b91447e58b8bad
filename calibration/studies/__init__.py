"""Which published studies are repeated in simulation? They use only public parts of the simulator and register through entry points."""
