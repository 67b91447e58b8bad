"""How is a run with a layout reported? Its table, its expected error, and the launch files for other programs."""
