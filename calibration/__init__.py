"""Measures machines, fits parameters and validates predictions; imports `sim`, never the reverse."""
