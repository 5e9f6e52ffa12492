class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("not today")

    def execute(self, requests):
        return []
