"""How does a person or a program see a run? Tables, documents, plots and files."""
