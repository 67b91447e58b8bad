"""How long does training take over a network of a specified rate and delay? Measured on one machine, on a testbed of network namespaces.

Read in this order: `plan` (what to measure), `network` (hosts, cables, token buckets), `delay` (a delay line, if the kernel has none),
`probe` (the rates that the network reaches), `disk` (a throttled data set), `measure` (one point; for ranks that shard, split or pipeline
a model: `calibration.measure.layout_steps`), `records` (stored results), `score` and `layout_score` (comparison with the simulator).
"""
