"""What does ``sim new`` write? Machines and workloads, from files of other programs or from answers to questions."""
