"""How does the local web page work? Controls set up a run and the page shows its result; the server only calls studies and reports."""
