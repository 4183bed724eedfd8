"""The rules about a whole model: name, platform and backend, batch size, response cache, metrics; and which rules run when.

Each rule notes what it finds and goes on, so that one look finds everything (contract: model_config, sections 0 and 1).
"""

from __future__ import annotations

import re

from kernel.config.check_batching import check_dynamic_batching
from kernel.config.check_instances import check_instance_groups, check_rate_limiter
from kernel.config.check_sequence import check_initial_states, check_sequence_batching
from kernel.config.check_tensors import check_batch_tensors, check_tensors
from kernel.config.check_warmup import check_warmup
from kernel.config.defaults import DEFAULT_FILENAMES, PLATFORM_BACKENDS
from kernel.config.errors import did_you_mean, listed
from kernel.config.graph import check_ensemble
from kernel.config.parameters import check_parameters
from kernel.config.paths import check_paths
from kernel.config.positions import Key
from kernel.config.report import Report

__all__ = ["check_all"]


def check_all(report: Report) -> None:
    """Run every rule that needs nothing but this one config."""
    _check_name(report)
    _check_platform(report)
    _check_batch_size(report)
    check_dynamic_batching(report)
    check_sequence_batching(report)
    check_ensemble(report)
    _check_response_cache(report)
    _check_metrics(report)
    check_tensors(report)
    check_batch_tensors(report)
    check_instance_groups(report)
    check_rate_limiter(report)
    check_warmup(report)
    check_paths(report)
    check_initial_states(report)
    _check_backend(report)
    _check_runtime(report)
    check_parameters(report)


def _check_name(report: Report) -> None:
    name, directory = report.name, report.directory
    if name != directory:
        words = f"unexpected directory name '{directory}' for model '{name}', directory name must equal model name"
        report.fail("A", ("name",), words, f"leave 'name' out or set it to '{directory}'")


def _check_platform(report: Report) -> None:
    message, name = report.message, report.name
    platform, backend = message.platform, message.backend
    if platform == "ensemble":
        if backend:
            words = f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type"
            report.fail("A", ("backend",), words, f"got backend '{backend}'")
        return
    if message.HasField("ensemble_scheduling"):
        return  # said by the rules of ensembles
    if not backend:
        _no_backend(report)
        return
    wanted = [known for known, its_backend in PLATFORM_BACKENDS.items() if its_backend == backend]
    if platform and wanted and platform not in wanted:  # backends without a platform of their own take any, as in the reference
        detail = f"wanted {listed(wanted)} or none for backend '{backend}'"
        report.fail("A", ("platform",), f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}", detail)


def _no_backend(report: Report) -> None:
    message, name = report.message, report.name
    platform = message.platform
    if platform or message.default_model_filename:
        words = f"unexpected platform type '{platform}' for {name}"
        if platform in (report.backends or DEFAULT_FILENAMES):
            detail = f"'{platform}' is a backend: write backend: \"{platform}\" and no platform"
        elif platform:
            known = ["ensemble", *PLATFORM_BACKENDS]
            detail = f"wanted {listed(known)} or none{did_you_mean(platform, known)}"
        else:
            detail = "with 'default_model_filename' set, 'backend' must be set too"
        report.fail("A", ("platform",) if platform else ("default_model_filename",), words, detail)
        return
    words = (
        f"Invalid model name: Could not determine backend for model '{name}' with no backend in model configuration."
        " Expected model name of the form 'model.<backend_name>'."
    )
    files = listed(DEFAULT_FILENAMES.values())
    report.fail("A", ("backend",), words, f"set 'backend', or put one of {files} into a version folder of the model")


def _check_batch_size(report: Report) -> None:
    size = report.message.max_batch_size
    if size < 0:
        report.fail(
            "A", ("max_batch_size",), f"'max_batch_size' must be non-negative value for {report.name}", f"got {size}"
        )


def _check_response_cache(report: Report) -> None:
    message, name = report.message, report.name
    if not message.response_cache.enable:
        return
    words = "Response Cache does not currently support model {} with {}. Please disable the response cache."
    at = ("response_cache", "enable")
    if message.HasField("sequence_batching"):
        report.fail("A", at, words.format(name, "sequence batching scheduler"))
    if message.model_transaction_policy.decoupled:
        report.fail("A", at, words.format(name, "'decoupled' transaction policy"))


def _check_metrics(report: Report) -> None:
    labels: dict[str, str] = {}
    for key in sorted(report.message.metric_tags):
        # What a label's name may not have becomes an underscore on the metrics page; the reference ends there.
        label = re.sub("[^a-zA-Z0-9_]", "_", key)
        if not key:
            report.fail("A", ("metric_tags", Key(key)), "metric tag must have a non-empty 'key'", "it is a label of the metrics")
        elif label in labels:
            words = f"metric tags '{labels[label]}' and '{key}' would be one label of the metrics, '_{label}'"
            report.fail("A", ("metric_tags", Key(key)), words)
        labels.setdefault(label, key)
    for index, control in enumerate(report.message.model_metrics.metric_control):
        at = ("model_metrics", "metric_control", index)
        if not control.HasField("metric_identifier"):
            report.fail("A", at, "metric control must specify 'metric_identifier'")
        elif not control.metric_identifier.family:
            report.fail("A", (*at, "metric_identifier"), "metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            report.fail("A", at, "metric control must specify 'histogram_options'")
        elif not control.histogram_options.buckets:
            report.fail("A", (*at, "histogram_options"), "histogram options must specify non-empty 'buckets'")


def _check_runtime(report: Report) -> None:
    """There are no backends but those that are installed, whatever library a model names."""
    runtime, backend = report.message.runtime, report.message.backend
    if not runtime or runtime == f"libtriton_{backend}.so":
        return
    kind = "Python backend based backend" if runtime.endswith(".py") else "backend"
    words = f"unable to find {kind} library '{runtime}' for model '{report.name}'"
    searched = f", searched: '{report.model_folder}'" if report.model_folder is not None else ""
    detail = f"backends are plugins here; leave it out, or write libtriton_{backend or 'python'}.so"
    report.fail("B", ("runtime",), f"{words}{searched}", detail)


def _check_backend(report: Report) -> None:
    backend = report.message.backend
    if report.backends is None or not backend or backend in report.backends or report.message.platform == "ensemble":
        return
    words = (
        f"unable to find backend library for backend '{backend}', try specifying runtime on the model configuration."
    )
    installed = sorted(set(report.backends) - {"ensemble"})
    report.fail("B", ("backend",), words, f"installed are {listed(installed)}{did_you_mean(backend, installed)}")
