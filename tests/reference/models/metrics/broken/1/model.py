raise ImportError("there is no such weight")
