"""Programs of ranks: meshes, shares of layers, schedules and instructions. Pure: nothing here depends on hardware or time."""
