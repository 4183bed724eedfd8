"""Fails while it is loaded."""


class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no luck today")

    def execute(self, requests):
        return None
