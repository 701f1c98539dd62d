"""Random bits that depend on a key and an element's index alone."""
