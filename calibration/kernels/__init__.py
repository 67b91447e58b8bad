"""Do the simulator's kernel times agree with measured ones? The records, the fit of the model's constants, the errors."""
