"""What can be typed after ``python -m sim``? One file a command: parse, call one function, print. No physics."""
