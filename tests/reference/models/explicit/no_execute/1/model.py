"""Has no execute."""


class TritonPythonModel:
    def initialize(self, args):
        pass
