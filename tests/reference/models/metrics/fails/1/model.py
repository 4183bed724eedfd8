class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("not today")
