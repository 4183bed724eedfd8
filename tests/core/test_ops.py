"""What is in ops/ agrees with the server: its flags are read as `kernel serve` reads them, ports and paths are those that there
are, and who ends the server leaves it the time that it takes. Kubernetes' schemas hold its files, systemd's own tool the unit.
"""

from __future__ import annotations

import argparse
import configparser
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from kubernetes_validate import latest_version, validate

from kernel import ServerScale
from kernel.cli.ending import LEFT_SECONDS, TOLD_SECONDS
from kernel.cli.flags import add_other_flags, add_serve_flags
from kernel.cli.group import BEYOND_SECONDS
from kernel.cli.parser import Parser
from kernel.cli.serve import HELD_SECONDS
from kernel.plugins import Plugins
from kernel_http.connection.routes import ROUTES

ROOT = Path(__file__).parents[2]
OPS = ROOT / "ops"
KUBERNETES = OPS / "kubernetes"
#: What a server, or several replicas, may take beyond --exit-timeout-secs until all processes have gone; seconds.
BEYOND = max(HELD_SECONDS + LEFT_SECONDS + TOLD_SECONDS, BEYOND_SECONDS)
#: What a pod has to end by default; seconds.
GRACE = 30

#: The fields of a ServingRuntime of KServe 0.21 that are not a pod's.
RUNTIME = {
    "annotations", "builtInAdapter", "disabled", "grpcDataEndpoint", "grpcEndpoint", "httpDataEndpoint", "labels", "multiModel",
    "protocolVersions", "replicas", "storageHelper", "supportedModelFormats", "workerSpec",
}  # fmt: skip
FORMAT = {"name", "version", "autoSelect", "priority"}
#: Those of a service of the Compose specification that are used here.
SERVICE = {
    "build", "cap_drop", "command", "healthcheck", "image", "ports", "read_only", "restart", "security_opt",
    "stop_grace_period", "stop_signal", "tmpfs", "ulimits", "volumes",
}  # fmt: skip


def documents(*paths: Path) -> list[dict[str, Any]]:
    return [one for path in paths for one in yaml.safe_load_all(path.read_text()) if one]


def options(arguments: list[str]) -> argparse.Namespace:
    """Read a command line as `kernel serve` does; fail where it would not start."""
    parser = Parser("kernel serve", "", "")
    add_serve_flags(parser)
    Plugins().add_options(parser)
    add_other_flags(parser)
    read = parser.read(arguments)
    assert not read.without_effect and read.repositories + read.model_repository
    return read


def unit() -> dict[str, list[str]]:
    parser = configparser.RawConfigParser(dict_type=Several, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(OPS / "kernel.service")
    return {name: value.split("\n") for name, value in parser["Service"].items()}


class Several(dict[Any, Any]):
    """A section in which a name may stand several times."""

    def __setitem__(self, name: Any, value: Any) -> None:
        if isinstance(value, list) and name in self:
            self[name].extend(value)
        else:
            super().__setitem__(name, value)


def container(document: dict[str, Any]) -> dict[str, Any]:
    (one,) = document["spec"].get("template", document)["spec"]["containers"]
    return one


def deployment() -> dict[str, Any]:
    (one,) = documents(KUBERNETES / "base/deployment.yaml")
    return one


def runtime() -> dict[str, Any]:
    (one,) = documents(OPS / "kserve/servingruntime.yaml")
    return one


def compose() -> dict[str, Any]:
    (one,) = documents(OPS / "compose.yaml")
    return one["services"]["kernel"]


def seconds(text: str) -> float:
    return float(re.fullmatch(r"(\d+)s?", text)[1])  # type: ignore[index]


def commands() -> dict[str, tuple[argparse.Namespace, float]]:
    """Where a server is started: with which options, and how long it has to end."""
    start, serve, *arguments = unit()["ExecStart"][0].split()
    assert (start, serve) == ("/opt/kernel/bin/kernel", "serve")
    pod = deployment()["spec"]["template"]["spec"]
    return {
        "systemd": (options(arguments), seconds(unit()["TimeoutStopSec"][0])),
        "compose": (options(compose()["command"]), seconds(compose()["stop_grace_period"])),
        "kubernetes": (options(container(deployment())["args"]), pod["terminationGracePeriodSeconds"]),
        "kserve": (options(container(runtime())["args"]), GRACE),
    }


@pytest.mark.parametrize("place", ["systemd", "compose", "kubernetes", "kserve"])
def test_times_to_end(place: str) -> None:
    read, grace = commands()[place]
    assert 0 < read.drain_delay < read.exit_timeout_secs
    assert read.exit_timeout_secs + BEYOND <= grace


def test_a_load_balancer_learns_in_time_that_a_server_is_not_ready() -> None:
    for document, place in ((deployment(), "kubernetes"), (runtime(), "kserve")):
        probe = container(document)["readinessProbe"]
        seen = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
        assert seen < commands()[place][0].drain_delay
        assert "lifecycle" not in container(document)
    health = compose()["healthcheck"]
    assert seconds(health["interval"]) > seconds(health["timeout"])


def test_ports() -> None:
    default = options(["/models"])
    ports = {"http": default.http_port, "grpc": default.grpc_port, "metrics": default.metrics_port}
    (exposed,) = re.findall(r"^EXPOSE (.*)", (OPS / "Containerfile").read_text(), re.M)
    assert [int(port) for port in exposed.split()] == [*ports.values()]
    assert [port.rpartition(":")[0].rpartition(":")[2] for port in compose()["ports"]] == exposed.split()
    assert [port.rpartition(":")[2] for port in compose()["ports"]] == exposed.split()
    assert {port["name"]: port["containerPort"] for port in container(deployment())["ports"]} == ports
    for service in documents(KUBERNETES / "base/service.yaml"):
        assert all(ports[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    read = commands()["kserve"][0]
    assert [port["containerPort"] for port in container(runtime())["ports"]] == [read.http_port]
    annotations = deployment()["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["metrics"])
    assert runtime()["spec"]["annotations"]["prometheus.kserve.io/port"] == str(read.metrics_port)


def probes(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: value for name, value in container(document).items() if name.endswith("Probe")}


def test_probes_ask_for_what_there_is() -> None:
    health = {route.pattern for route in ROUTES if route.category == "health"}
    for document in (deployment(), runtime()):
        names = {port["name"]: port["containerPort"] for port in container(document)["ports"]}
        assert {"readinessProbe", "livenessProbe"} <= probes(document).keys()
        for name, probe in probes(document).items():
            asked = probe["httpGet"]
            assert asked["path"] in health and names.get(asked["port"], asked["port"]) == names.get("http", names.get("http1"))
            assert asked["path"].endswith("ready" if name == "readinessProbe" else "live")
    (patch,) = documents(KUBERNETES / "grpc/probes.yaml")
    for name, probe in probes(patch).items():
        assert probe["httpGet"] is None
        assert probe.get("grpc", probe.get("tcpSocket"))["port"] == (8001 if name == "readinessProbe" else "grpc")
    assert any(f"127.0.0.1:8000{path}'" in compose()["healthcheck"]["test"][-1] for path in health if path.endswith("ready"))


def test_nobody_is_root_and_nothing_is_written() -> None:
    text = (OPS / "Containerfile").read_text()
    (user,) = re.findall(r"^USER (\d+):\d+$", text, re.M)
    for document in (deployment(), runtime()):
        context = container(document)["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        pod = document["spec"].get("template", document)["spec"].get("securityContext", context)
        assert pod["runAsNonRoot"] and pod["runAsUser"] == int(user) and pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {mount["mountPath"] for mount in container(document)["volumeMounts"]} >= {"/tmp"}
    assert compose()["read_only"] and compose()["cap_drop"] == ["ALL"] and compose()["tmpfs"] == ["/tmp"]
    assert unit()["DynamicUser"] == ["yes"] and unit()["ProtectSystem"] == ["strict"]


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    """A ServingRuntime's part that is a pod's."""
    spec = {name: value for name, value in document["spec"].items() if name not in RUNTIME}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}


def test_schemas() -> None:
    found = documents(*(path for path in (KUBERNETES / "base").glob("*.yaml") if path.name != "kustomization.yaml"))
    assert {one["kind"] for one in found} == {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    for document in (*found, pod_of(runtime())):
        validate(document, latest_version(), strict=True)
    assert all(one.keys() <= FORMAT for one in runtime()["spec"]["supportedModelFormats"])
    assert runtime()["apiVersion"] == "serving.kserve.io/v1alpha1" and runtime()["kind"] == "ServingRuntime"
    assert container(runtime())["name"] == "kserve-container"
    assert compose().keys() <= SERVICE
    assert (OPS / compose()["build"]["context"] / compose()["build"]["dockerfile"]).resolve() == OPS / "Containerfile"


#: The fields of a ScaledObject of KEDA 2.20, and those of its trigger `metrics-api` without authentication.
SCALED_OBJECT = {
    "advanced", "cooldownPeriod", "fallback", "idleReplicaCount", "initialCooldownPeriod", "maxReplicaCount", "minReplicaCount",
    "pollingInterval", "scaleTargetRef", "triggers",
}  # fmt: skip
METRICS_API = {
    "activationTargetValue", "aggregateFromKubeServiceEndpoints", "aggregationType", "format", "targetValue", "timeout",
    "unsafeSsl", "url", "valueLocation",
}  # fmt: skip


def test_keda_asks_for_what_there_is() -> None:
    (scaled,) = documents(KUBERNETES / "keda/scaledobject.yaml")
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = scaled["spec"]
    assert spec.keys() <= SCALED_OBJECT and spec["scaleTargetRef"] == {"name": deployment()["metadata"]["name"]}
    (trigger,) = spec["triggers"]
    asked = trigger["metadata"]
    assert trigger.keys() == {"type", "metadata"} and trigger["type"] == "metrics-api" and asked.keys() <= METRICS_API
    assert all(type(value) is str for value in asked.values())
    # What KEDA makes of it, and what it shows of `advanced` in that.
    (hpa,) = documents(KUBERNETES / "base/autoscaler.yaml")
    hpa["spec"]["behavior"] = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    validate(hpa, latest_version(), strict=True)
    host, port, path = re.fullmatch(r"http://([^:/]+):(\d+)(/.*)", asked["url"]).groups()  # type: ignore[union-attr]
    services = {document["metadata"]["name"] for document in documents(KUBERNETES / "base/service.yaml")}
    assert host.split(".")[0] in services
    assert int(port) in {one["containerPort"] for one in container(deployment())["ports"] if one["name"] == "http"}
    assert path in {route.pattern for route in ROUTES if "GET" in route.methods}
    place, name = asked["valueLocation"].split(".")
    assert place == "server" and get_type_hints(ServerScale)[name] is float


def test_everything_selects_the_same_pods() -> None:
    labels = deployment()["spec"]["template"]["metadata"]["labels"]
    for document in documents(*(KUBERNETES / f"base/{name}.yaml" for name in ("deployment", "service", "disruption"))):
        selector = document["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels
    for kustomization in KUBERNETES.glob("*/kustomization.yaml"):
        (one,) = documents(kustomization)
        patches = [patch["path"] for patch in one.get("patches", ()) if "path" in patch]
        assert all((kustomization.parent / name).exists() for name in (*one["resources"], *patches))


@pytest.mark.parametrize("folder", ["base", "grpc", "keda"])
def test_kustomize(folder: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    done = subprocess.run([kubectl, "kustomize", KUBERNETES / folder], capture_output=True, text=True, timeout=60, check=True)
    made = defaultdict(list)
    for document in yaml.safe_load_all(done.stdout):
        if document["kind"] != "ScaledObject":
            validate(document, latest_version(), strict=True)
        made[document["kind"]].append(document)
    read = options(container(made["Deployment"][0])["args"])
    assert read.allow_http == (folder != "grpc")
    names = {port["name"] for port in container(made["Deployment"][0])["ports"]}
    assert all(port["targetPort"] in names for service in made["Service"] for port in service["spec"]["ports"])


def test_unit(tmp_path: Path) -> None:
    assert unit()["Type"] == ["notify"] and unit()["KillSignal"] == ["SIGTERM"] and unit()["KillMode"] == ["mixed"]
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd here")
    text = (OPS / "kernel.service").read_text()
    copy = tmp_path / "kernel.service"
    copy.write_text(text.replace("/opt/kernel/bin/kernel", f"{sys.executable} -m kernel"))
    for command in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run([analyze, *command, copy], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


# -- alerts

#: Metrics of Prometheus itself.
ITS_OWN = {"up"}
WORDS = {"sum", "max", "by", "and", "rate", "histogram_quantile"}
LABELS = {"instance", "job", "model", "version", "reason", "le"}


def families() -> dict[str, str]:
    """Name -> kind of all families, as the page about metrics has them, which another test holds."""
    rows = re.findall(r"^\| (`(?:nv|kernel)_.*?) \| (\w+) \|", (ROOT / "docs/metrics.md").read_text(), re.M)
    return {name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}


def rules() -> list[dict[str, Any]]:
    (one,) = documents(OPS / "alerts.yaml")
    assert one.keys() == {"groups"} and all(group.keys() == {"name", "rules"} for group in one["groups"])
    return [rule for group in one["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alert(rule: dict[str, Any]) -> None:
    assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"} and re.fullmatch(r"\d+m", rule["for"])
    assert rule["labels"]["severity"] in ("warning", "critical") and rule["annotations"].keys() == {"summary"}
    expression = re.sub(r'"[^"]*"|\[\d+m\]|[\d.]+', " ", rule["expr"])
    assert expression.count("(") == expression.count(")")
    names = set(re.findall(r"[a-z_]+", expression)) - WORDS - LABELS
    assert names
    kinds = families()
    for name in names - ITS_OWN:
        kind = kinds[name.removesuffix("_bucket")]
        rated = re.search(rf"rate\({name}\W", rule["expr"]) is not None
        assert (kind == "histogram") == name.endswith("_bucket"), name
        assert rated == (kind != "gauge"), f"{name} is a {kind}"
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression)))) | {"instance"}
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert shown <= grouped <= LABELS


def test_documents_name_each_alert() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    named = re.findall(r"^\| `(Kernel\w+)` \|", text, re.M)
    assert named == [rule["alert"] for rule in rules()]


def test_flags_of_the_document_are_there() -> None:
    parser = Parser("kernel serve", "", "")
    add_serve_flags(parser)
    Plugins().add_options(parser)
    text = "".join(path.read_text() for path in (ROOT / "docs/operations.md", *OPS.rglob("*.yaml")))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]\b(?!-)", text)) - {"--build"}
    assert len(named) > 15
    assert [flag for flag in sorted(named) if not parser.knows(flag)] == []
