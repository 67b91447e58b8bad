"""Programs of ranks: meshes, shares of layers, schedules and instructions. Pure: nothing here knows hardware or time."""
