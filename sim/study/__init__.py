"""What do the results of several runs show? From the user's question to runs: scenarios, ranges, sensitivity."""
