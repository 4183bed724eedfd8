"""What lies on the disk: model folders, their versions, what has changed, where a mistake is. Knows nothing that runs."""
