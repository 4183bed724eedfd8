"""Calls of models that could only wait for themselves: looked for among those that have to wait.

The law: who is refused could not have gone on; in doubt nobody is. What threads, tasks and processes wait for is read where
there is a suspicion, and costs requests nothing; the decision (deadlock.py) is as pure as those in rules/.

Its public names are imported from its modules, and not from here: wait_view.py is imported by the children of kernel_python, too,
which have Python 3.9 and numpy alone, and the others would come along. They are `awaiting.Awaiting`, `lookout.Lookout`,
`lookout.Behind`, `lookout.circular_wait` and `wait_view.WaitView`.
"""
