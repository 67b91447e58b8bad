"""How are results presented to people and programs? As tables, documents, plots and files."""
