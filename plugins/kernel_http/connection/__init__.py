"""One client connection: bytes to complete messages, their heads to routes, and answers in the order of the requests.

Knows nothing of models or of what a message means: a route's handler is told, and answers once.
"""
