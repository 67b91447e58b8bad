"""How does a result look as one page that opens anywhere, offline? HTML with its style, script and figures inside."""
