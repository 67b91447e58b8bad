"""How far off predictions are: scores, groups, sources left out, aims, and the published table."""
