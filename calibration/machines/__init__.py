"""How does the record of one machine become its description? Fits of the constants, and their residuals."""
