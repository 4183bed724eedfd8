"""From a model's files to its class: what its source says, where it may run, its private modules, its completed config.

Runs a model's code only to import it. Knows nothing of requests. `lifecycle.py` runs in children, too: Python 3.9 and numpy.
"""
