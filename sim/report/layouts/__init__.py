"""How does a run with a layout look? Its table, its error, and the launch files of other programs that ask for it."""
