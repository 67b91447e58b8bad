"""What does training over a network of given rate and delay cost, measured on one machine? A testbed of network namespaces.

Read in this order: `plan` (what to measure), `network` (hosts, cables, token buckets), `delay` (a delay line where the kernel has none),
`probe` (does the network carry what it should?), `disk` (a throttled data set), `decoder` and `layout_steps` (ranks that shard, split or
pipeline a model), `measure` (one point), `records` (what is kept), `score` and `layout_score` (the simulator against it).
"""
