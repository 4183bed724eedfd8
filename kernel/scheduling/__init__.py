"""Who executes when, and one final answer for each accepted request. The only timers on a request's way are here."""
