"""The series of one model version: what stands before each value, made once, and the values, read at each scrape.

Names, labels and HELP texts that begin with `nv_` are the reference's (contract: observability, section 2), in its order; what
begins with `kernel_` is ours. Reads counters, changes none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernel import Model, Reason
from kernel_metrics.gpus import gpu_uuid
from kernel_metrics.observing import Histogram, RequestObserver, Summary
from kernel_metrics.options import MetricsSettings
from kernel_metrics.text import Family, counts_line, histogram_lines, labelled, number, series, summary_lines

__all__ = ["ModelFamilies", "ModelSeries"]

FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
FIRST_RESPONSE_BOUNDS = (100.0, 500.0, 2000.0, 5000.0)
FAILURES = (Reason.REJECTED, Reason.CANCELED, Reason.BACKEND, Reason.OTHER)

_CACHED, _UNCACHED = "(includes cached requests)", "(does not include cached requests)"

COUNTS = (
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes"),
    ("nv_inference_request_failure", "Number of failed inference requests, all batch sizes"),
    ("nv_inference_count", f"Number of inferences performed {_UNCACHED}"),
    ("nv_inference_exec_count", f"Number of model executions performed {_UNCACHED}"),
)
DURATIONS = (
    ("nv_inference_request_duration_us", f"Cumulative inference request duration in microseconds {_CACHED}"),
    ("nv_inference_queue_duration_us", f"Cumulative inference queuing duration in microseconds {_CACHED}"),
    ("nv_inference_compute_input_duration_us", f"Cumulative compute input duration in microseconds {_UNCACHED}"),
    ("nv_inference_compute_infer_duration_us", f"Cumulative compute inference duration in microseconds {_UNCACHED}"),
    ("nv_inference_compute_output_duration_us", f"Cumulative inference compute output duration in microseconds {_UNCACHED}"),
)
HITS = ("nv_cache_num_hits_per_model", "Number of cache hits per model")
HIT_DURATION = ("nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds")
MISSES = ("nv_cache_num_misses_per_model", "Number of cache misses per model")
MISS_DURATION = ("nv_cache_miss_duration_per_model", "Total cache miss (insert+lookup) duration per model, in microseconds")
PENDING = (
    "nv_inference_pending_request_count",
    "Instantaneous number of pending requests awaiting execution per-model.",
)
SUMMARIES = (
    ("nv_inference_request_summary_us", f"Summary of inference request duration in microseconds {_CACHED}"),
    ("nv_inference_queue_summary_us", f"Summary of inference queuing duration in microseconds {_CACHED}"),
    # So the reference calls the next three.
    ("nv_inference_compute_input_summary_us", DURATIONS[2][1]),
    ("nv_inference_compute_infer_summary_us", DURATIONS[3][1]),
    ("nv_inference_compute_output_summary_us", DURATIONS[4][1]),
)
CACHE_SUMMARIES = (
    ("nv_cache_hit_summary_per_model", "Summary of cache hit counts/durations per model, in microseconds."),
    ("nv_cache_miss_summary_per_model", "Summary of cache miss counts/durations per model, in microseconds."),
)
LOAD = ("nv_model_load_duration_secs", "Model load time in seconds")
FIRST_MS = (FIRST_RESPONSE, "Duration from request to first response in milliseconds")

OWN_HISTOGRAMS = (
    ("kernel_queue_seconds", "Time from acceptance to the start of the execution, of requests that were answered"),
    ("kernel_first_response_seconds", "Time from acceptance to the first response, of requests that got one"),
    ("kernel_batch_size", "Rows of an execution, of models that batch"),
)
OWN_GAUGES = (
    ("kernel_queue_depth", "Requests in the queue of the model, not handed to an instance yet"),
    ("kernel_queue_oldest_seconds", "How long the request has waited that has waited longest; 0 when none waits"),
    ("kernel_requests_in_flight", "Requests accepted and not answered yet"),
)
OWN_COUNTERS = (
    ("kernel_requests_refused_total", "Requests that were not accepted: the queue was full, or the model was stopping"),
    ("kernel_loop_held_total", "Times an execution held the event loop for more than 100 ms"),
    ("kernel_loop_held_seconds_total", "Time for which these executions held the event loop"),
)


class ModelFamilies:
    """The families that models have series in, in the order of the page: before and after those of the machine."""

    def __init__(self) -> None:
        counters = (*COUNTS, *DURATIONS, HITS, HIT_DURATION, MISSES, MISS_DURATION)
        self.first = [Family(name, "counter", text) for name, text in counters]
        self.first.append(Family(PENDING[0], "gauge", PENDING[1]))
        self.then = [Family(name, "summary", text) for name, text in (*SUMMARIES, *CACHE_SUMMARIES)]
        self.then.append(Family(FIRST_MS[0], "histogram", FIRST_MS[1]))
        self.then.append(Family(LOAD[0], "gauge", LOAD[1]))
        self.then += [Family(name, "gauge", text) for name, text in OWN_GAUGES]
        self.then += [Family(name, "counter", text) for name, text in OWN_COUNTERS]
        self.then += [Family(name, "histogram", text) for name, text in OWN_HISTOGRAMS]
        self.by_name = {family.name: family for family in (*self.first, *self.then)}

    def clear(self) -> None:
        for family in self.by_name.values():
            family.lines.clear()


class ModelSeries:
    """The series of one model version. `observer` has what the counters haven't. `counts`: with those behind quantiles."""

    def __init__(
        self, model: Model, observer: RequestObserver, families: ModelFamilies, settings: MetricsSettings, counts: bool = False
    ) -> None:
        self._model = model
        self._observer = observer
        self._latencies = settings.counter_latencies
        self._quantiles = tuple(settings.summary_quantiles) if settings.summary_latencies else ()
        self._cached = model.is_cached
        self._bounds = _batch_bounds(model.config.max_batch_size)
        self._batches: dict[int, list[float]] = {}
        self._counts = families if counts and self._quantiles else None
        #: (the lines of a family, what stands before the value), in the order of `_values`.
        self._rows = [
            (families.by_name[name].lines, before)
            for name, befores in self._names(_labels(model))
            for before in befores
        ]

    def _names(self, labels: dict[str, str]) -> list[tuple[str, Sequence[str]]]:
        """Return each family's name and what stands before its values; `_values` has the same order."""
        text = labelled(labels)
        found: list[tuple[str, Sequence[str]]] = []

        def one(name: str) -> None:
            found.append((name, [series(name, text)]))

        def histogram(name: str, bounds: Sequence[float]) -> None:
            found.append((name, histogram_lines(name, text, bounds)))

        one(COUNTS[0][0])
        name = COUNTS[1][0]
        found.append((name, [series(name, labelled({**labels, "reason": reason.value})) for reason in FAILURES]))
        one(COUNTS[2][0])
        one(COUNTS[3][0])
        if self._latencies:
            for name, _ in DURATIONS:
                one(name)
        if self._cached:
            one(HITS[0])
            one(MISSES[0])
            if self._latencies:
                one(HIT_DURATION[0])
                one(MISS_DURATION[0])
        one(PENDING[0])
        one(LOAD[0])
        for name, _ in (*OWN_GAUGES, *OWN_COUNTERS):
            one(name)
        observer = self._observer
        histogram(OWN_HISTOGRAMS[0][0], observer.queue.bounds)
        histogram(OWN_HISTOGRAMS[1][0], observer.first.bounds)
        if self._bounds:
            histogram(OWN_HISTOGRAMS[2][0], self._bounds)
        if observer.first_ms is not None:
            histogram(FIRST_RESPONSE, observer.first_ms.bounds)
        if self._quantiles:
            for name, _ in self._summaries():
                found.append((name, summary_lines(name, text, self._quantiles)))
        return found

    def _values(self, now: float) -> list[float]:
        model, observer = self._model, self._observer
        scheduler = model.scheduler
        counter = scheduler.statistics
        counter.settle()
        failures = counter.failures
        values: list[float] = [
            counter.success,
            *(failures[reason] for reason in FAILURES),
            counter.inference_count,
            counter.execution_count,
        ]
        if self._latencies:
            values += [
                _us(counter.success_time),
                _us(counter.queue_time),
                _us(counter.compute_input),
                _us(counter.compute_infer),
                _us(counter.compute_output),
            ]
        if self._cached:
            values += [counter.hits, counter.misses]
            if self._latencies:
                values += [_us(counter.hit_time), _us(counter.miss_time)]
        since = scheduler.waiting_since()
        values += [
            scheduler.pending,
            model.load_seconds,
            scheduler.queue.size,
            0 if since is None else max(0.0, now - since),
            scheduler.in_flight,
            counter.refused,
            counter.held,
            counter.held_seconds,
            *observer.queue.values(),
            *observer.first.values(),
        ]
        if self._bounds:
            values += self._batch_sizes(counter.batches)
        if observer.first_ms is not None:
            values += observer.first_ms.values()
        if self._quantiles:
            for _, summary in self._summaries():
                values += [summary.count, summary.sum, *summary.quantiles(self._quantiles, now)]
        return values

    def _summaries(self) -> list[tuple[str, Summary]]:
        """Return the names of the summaries that are shown, and these."""
        observer = self._observer
        names = [name for name, _ in (*SUMMARIES, *(CACHE_SUMMARIES if self._cached else ()))]
        return list(zip(names, (*observer.summaries, observer.hits, observer.misses)))

    def _batch_sizes(self, batches: dict[int, list[float]]) -> list[float]:
        histogram = Histogram(self._bounds)
        for rows, (count, *_) in batches.items():
            histogram.count += int(count)
            histogram.sum += rows * int(count)
            for k, bound in enumerate(self._bounds):
                if rows <= bound:
                    histogram.below[k] += int(count)
        return histogram.values()

    def add(self, now: float) -> None:
        """Add the lines of this moment to the families."""
        for (lines, before), value in zip(self._rows, self._values(now)):
            lines.append(before + (str(value) if type(value) is int else number(value)))
        if self._counts is not None:
            labels = labelled(_labels(self._model))
            for name, summary in self._summaries():
                self._counts.by_name[name].lines.append(counts_line(name, labels, summary.counts(now)))


def first_response_bounds(model: Model) -> Sequence[float]:
    """Return the bounds of the reference's histogram: those of the model's `model_metrics`, or the default ones."""
    for control in model.config.message.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSE and control.HasField("histogram_options"):
            return sorted(control.histogram_options.buckets)
    return FIRST_RESPONSE_BOUNDS


def _labels(model: Model) -> dict[str, str]:
    # A label's name has no escapes: one character that it may not have would make the whole page unreadable.
    tags = {"_" + re.sub("[^a-zA-Z0-9_]", "_", key): value for key, value in sorted(model.config.message.metric_tags.items())}
    return {**tags, **_gpu_label(model), "model": model.name, "version": str(model.version)}


def _gpu_label(model: Model) -> dict[str, str]:
    """Name the GPU of a model whose instances are all on one. Over several GPUs ours counts as one, the reference per GPU."""
    groups = model.config.instance_groups
    gpus = {gpu for group in groups for gpu in group.gpus}
    if len(gpus) != 1 or any(group.kind != "GPU" for group in groups):
        return {}
    name = gpu_uuid(gpus.pop())
    return {} if name is None else {"gpu_uuid": name}


def _batch_bounds(largest: int) -> tuple[float, ...]:
    """Return powers of two up to the largest batch, and that itself; nothing for a model that doesn't batch."""
    bounds = [1 << k for k in range(largest.bit_length())]
    return tuple(bounds if not largest or bounds[-1] == largest else [*bounds, largest])


def _us(seconds: float) -> int:
    return int(seconds * 1e6)
