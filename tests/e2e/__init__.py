"""Real processes, real ports, the real client: what a user does, done by a test."""
