"""Network constants of whole clusters, fitted to their own rows and accepted by cross-validation."""
