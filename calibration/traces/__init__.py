"""What does the profile of a training job show? It is read, reported, and replayed on other hardware."""
