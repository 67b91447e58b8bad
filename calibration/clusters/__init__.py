"""Network constants of whole clusters, fitted on their own rows and accepted by cross-validation."""
