"""How accurate are predictions? Scores, groups, sources left out, aims, and the published table."""
