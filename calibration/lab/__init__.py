"""What does training over a network of given rate and delay cost, measured on one machine? A testbed of network namespaces.

Read in this order: `plan` (what to measure), `network` (hosts, cables, token buckets), `delay` (a delay line where the kernel has none),
`probe` (does the network carry what it should?), `disk` (a throttled data set), `measure` (one point; ranks that shard, split or
pipeline a model: `calibration.measure.layout_steps`), `records` (what is kept), `score` and `layout_score` (the simulator against it).
"""
