"""From the record of one machine to its description: fits, and what they leave unexplained."""
