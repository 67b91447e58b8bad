"""What can be typed after ``python -m sim``? One file per command, which parses, calls one function and prints. No physics."""
