"""What do many runs say? From the user's question to runs: scenarios, ranges, sensitivity."""
