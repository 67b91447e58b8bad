"""A local page where a run is set up with controls and its result follows; the server calls studies and reports, and adds no physics."""
