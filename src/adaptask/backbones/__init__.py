"""From images to features: one file an architecture."""
