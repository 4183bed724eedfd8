"""What models see: the classes and functions of `triton_python_backend_utils`, their checks and their words.

Knows the core's records, whose code calls (calling.py) and how it waits (waiting.py); nothing of how a model is loaded or
executed. These files run in children, too: Python 3.9 and numpy. The names are given out by the module
`triton_python_backend_utils`, which stands beside this package because models import it.
"""
