"""Which model serves which name, and the way there: look, read, load, unload."""
