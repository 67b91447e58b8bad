"""How is a result shown as one page that opens anywhere, offline? As HTML that contains its style, script and figures."""
