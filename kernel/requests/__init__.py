"""What travels: a request with its continuation, its response, and the batch that executes it. No queue, no clock."""
