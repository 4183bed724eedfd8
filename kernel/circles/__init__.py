"""Calls of models that could only wait for themselves: looked for among those that have to wait.

The law: who is refused could not have gone on; in doubt nobody is. What threads, tasks and processes wait for is read where
there is a suspicion, and costs requests nothing; the decision (deadlock.py) is as pure as those in rules/.
"""
