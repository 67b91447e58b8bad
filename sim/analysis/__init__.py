"""What does the event log mean? Stalls, throughput, memory and cost as pure functions of the log and the specs."""
