import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily
        self.families = [
            family(name="my_requests", description="requests of mine", kind=family.COUNTER),
            family(name="my_level", description="the last X", kind=family.GAUGE),
            family(name="my_values", description="all X", kind=family.HISTOGRAM),
            family(name="my_nothing", description="without a metric", kind=family.GAUGE),
        ]
        requests, level, values, _ = self.families
        self.requests = requests.Metric(labels={"model": args["model_name"], "who": 'a "b" \\ c'})
        self.level = level.Metric(labels={})
        self.values = values.Metric(labels={"z": "1", "a": "2"}, buckets=[0.5, 1, 10])

    def execute(self, requests):
        for request in requests:
            value = float(request.inputs()[0].as_numpy()[0])
            self.requests.increment(1)
            self.level.set(value)
            self.values.observe(value)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
