"""What is measured on a machine? One file per probe; each probe has a list of questions that are measured one at a time."""
