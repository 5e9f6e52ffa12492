"""The Helm chart, the plain manifests and those of KServe: rendered by helm and checked without a cluster.

`kubernetes-validate` has the schemas of Kubernetes itself, `tests/deploy/schemas.py` those of other projects' objects.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest

from halimede.options.parser import parse
from tests.deploy.schemas import SCHEMAS

pytestmark = pytest.mark.deploy
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm" / "halimede"
KUBERNETES = ("1.27", "1.37")
"""Versions whose schemas are used: the oldest that the chart allows, and the newest that the package has."""
LIMIT = 60.0
Object = dict[str, Any]

VOLUME = {"models.existingClaim": "models"}
PEER = {"podSelector": {"matchLabels": {"app": "client"}}}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "volume": VOLUME,
    "claim": {"models.claim.enabled": True, "models.claim.storageClass": "fast", "models.claim.size": "1Ti"},
    "s3": {
        "models.url": "s3://bucket/models",
        "server.envFrom": [{"secretRef": {"name": "aws"}}],
        "serviceAccount.annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"},
    },
    "s3 with a claim's path": {"models.url": "s3://https://storage:9000/bucket/models", "models.cacheSize": "100Gi"},
    "init container": {
        "models.initContainer.enabled": True,
        "models.initContainer.image": "models:1",
        "models.initContainer.command": ["cp", "-r", "/repository/.", "/models"],
        "models.initContainer.env": [{"name": "A", "value": "b"}],
    },
    "folder of a volume": VOLUME | {"models.subPath": "production/models", "replicas": 5},
    "gpu": VOLUME
    | {
        "gpu.count": 2,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100"},
        "sharedMemory": "8Gi",
    },
    "gpu without other resources": VOLUME | {"gpu.count": 1, "gpu.resource": "nvidia.com/mig-1g.10gb", "resources": {}},
    "hpa": VOLUME | {"autoscaling.hpa.enabled": True, "autoscaling.instanceUse": 0.55},
    "keda": VOLUME | {"autoscaling.keda.enabled": True, "autoscaling.maxReplicas": 50, "autoscaling.minReplicas": 1},
    "network policy": VOLUME | {"networkPolicy.enabled": True},
    "network policy with peers": VOLUME
    | {
        "networkPolicy.enabled": True,
        "networkPolicy.clients": [PEER, {"ipBlock": {"cidr": "10.0.0.0/8"}}],
        "networkPolicy.monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "monitoring": VOLUME
    | {
        "monitoring.serviceMonitor.enabled": True,
        "monitoring.serviceMonitor.labels": {"release": "prometheus"},
        "monitoring.rules.enabled": True,
        "monitoring.dashboard.enabled": True,
    },
    "rules only": VOLUME | {"monitoring.rules.enabled": True, "monitoring.rules.labels": {"release": "prometheus"}},
    "tls of a secret": VOLUME | {"tls.secretName": "cert", "tls.mutual": True},
    "tls of cert-manager": VOLUME
    | {
        "tls.certManager.enabled": True,
        "tls.certManager.issuer": "letsencrypt",
        "tls.certManager.dnsNames": ["models.example.com", "*.example.org"],
    },
    "gateway": VOLUME
    | {
        "gateway.enabled": True,
        "gateway.parents": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
        "gateway.hostnames": ["models.example.com"],
    },
    "gateway for gRPC with sequences": VOLUME
    | {
        "gateway.enabled": True,
        "gateway.parents": [{"name": "public"}],
        "gateway.http": False,
        "sequences.provider": "envoy-gateway",
    },
    "istio": VOLUME
    | {"sequences.provider": "istio", "sequences.header": "x-sequence", "headlessService.enabled": False},
    "bare": VOLUME
    | {
        "disruptionBudget.enabled": False,
        "topologySpread.enabled": False,
        "headlessService.enabled": False,
        "serviceAccount.create": False,
        "replicas": 1,
    },
    "everything": VOLUME
    | {
        "fullnameOverride": "a-name-that-is-so-long-that-the-chart-must-cut-it-somewhere-or-fail",
        "image.repository": "registry.example.com/team/halimede",
        "image.tag": "1.2.3",
        "imagePullSecrets": [{"name": "registry"}],
        "server.args": [
            "--model-control-mode=poll",
            "--repository-poll-secs=30",
            "--metrics-config=summary_latencies=true",
        ],
        "server.env": [{"name": "OMP_NUM_THREADS", "value": "4"}],
        "podAnnotations": {"team": "vision"},
        "podLabels": {"team": "vision"},
        "priorityClassName": "high",
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
                }
            }
        },
        "topologySpread.topologyKey": "topology.kubernetes.io/zone",
        "topologySpread.whenUnsatisfiable": "DoNotSchedule",
        "service.type": "LoadBalancer",
        "service.annotations": {"a": "b"},
        "service.httpPort": 80,
        "disruptionBudget.maxUnavailable": "25%",
        "autoscaling.keda.enabled": True,
        "networkPolicy.enabled": True,
        "monitoring.serviceMonitor.enabled": True,
        "monitoring.rules.enabled": True,
        "monitoring.dashboard.enabled": True,
        "tls.certManager.enabled": True,
        "tls.certManager.issuer": "ca",
        "tls.certManager.issuerKind": "Issuer",
        "tls.mutual": True,
        "auth.secretName": "identities",
        "gateway.enabled": True,
        "gateway.parents": [{"name": "public"}],
        "sequences.provider": "envoy-gateway",
    },
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no models": ({}, "set exactly one of models.existingClaim"),
    "two sources of models": (VOLUME | {"models.url": "s3://a/b"}, "set exactly one of models.existingClaim"),
    "init container without an image": (
        {"models.initContainer.enabled": True},
        "models.initContainer.image is missing",
    ),
    "hpa and keda": (
        VOLUME | {"autoscaling.hpa.enabled": True, "autoscaling.keda.enabled": True},
        "set only one of autoscaling.hpa.enabled and autoscaling.keda.enabled",
    ),
    "less than the least": (VOLUME | {"autoscaling.maxReplicas": 1}, "less than autoscaling.minReplicas"),
    "cert-manager without an issuer": (VOLUME | {"tls.certManager.enabled": True}, "tls.certManager.issuer is missing"),
    "mutual TLS without a certificate": (VOLUME | {"tls.mutual": True}, "tls.mutual needs"),
    "routes without a gateway": (VOLUME | {"gateway.enabled": True}, "gateway.parents is empty"),
    "policy without routes": (VOLUME | {"sequences.provider": "envoy-gateway"}, "needs gateway.enabled"),
    "misspelt value": (VOLUME | {"replica": 3}, "replica"),
    "value of a wrong type": (VOLUME | {"replicas": "three"}, "replicas"),
    "url of another scheme": ({"models.url": "http://a/b"}, "models"),
    "argument without dashes": (VOLUME | {"server.args": ["log-verbose=1"]}, "args"),
}


def helm(*arguments: str | Path, accepted: bool = True) -> str:
    """What helm prints: if it refuses, its errors."""
    program = os.environ.get("HALIMEDE_HELM") or shutil.which("helm")
    if not program:
        pytest.skip("helm is not installed; make test-deploy fetches it")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode == 0) is accepted, done.stdout + done.stderr
    return done.stdout if accepted else done.stderr


def values_file(folder: Path, values: dict[str, Any]) -> Path:
    """Writes values, which have dotted names here, for helm."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    file = folder / "values.yaml"
    file.write_text(json.dumps(tree))
    return file


def objects(text: str) -> list[Object]:
    import yaml

    return [document for document in yaml.safe_load_all(text) if document]


def rendered(folder: Path, values: dict[str, Any]) -> list[Object]:
    file = values_file(folder, values)
    return objects(helm("template", "release", CHART, "--namespace", "models", "--values", file))


def check(document: Object) -> None:
    """Raises an exception if an object is not valid."""
    import jsonschema
    import kubernetes_validate

    schema = SCHEMAS.get((document["apiVersion"], document["kind"]))
    if schema is not None:
        jsonschema.validate(document, schema)
        return
    for version in KUBERNETES:
        kubernetes_validate.validate(document, version, strict=True)


def pods(documents: list[Object]) -> Iterator[Object]:
    """The specifications of the pods of workloads."""
    return (document["spec"]["template"] for document in documents if document["kind"] == "Deployment")


@pytest.mark.parametrize("name", COMBINATIONS)
def test_chart_renders_valid_objects(name: str, tmp_path: Path) -> None:
    documents = rendered(tmp_path, COMBINATIONS[name])
    for document in documents:
        check(document)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_objects_fit_together(name: str, tmp_path: Path) -> None:
    """Selectors choose the pods, mounts have volumes, the server accepts its flags, references have their objects."""
    documents = rendered(tmp_path, COMBINATIONS[name])
    (pod,) = pods(documents)
    labels, spec = pod["metadata"]["labels"].items(), pod["spec"]
    by_kind: dict[str, list[Object]] = {}
    for document in documents:
        by_kind.setdefault(document["kind"], []).append(document)

    for service in by_kind["Service"]:
        assert service["spec"]["selector"].items() <= labels
    for other in by_kind.get("PodDisruptionBudget", []):
        assert other["spec"]["selector"]["matchLabels"].items() <= labels
    for policy in by_kind.get("NetworkPolicy", []):
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    for test in by_kind["Pod"]:
        assert not by_kind["Service"][0]["spec"]["selector"].items() <= test["metadata"]["labels"].items()

    volumes = {volume["name"] for volume in spec["volumes"]}
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    assert {mount["name"] for container in containers for mount in container["volumeMounts"]} == volumes
    (server,) = spec["containers"]
    options = parse(server["args"][1:], {})
    mounted = [mount["mountPath"] for mount in server["volumeMounts"]]
    grpc = options.grpc_options
    assert grpc.tls is ("tls" in volumes)
    for file in (options.auth, grpc.server_cert, grpc.server_key, grpc.root_cert):
        assert not file or any(file.startswith(path + "/") for path in mounted)
    assert spec["terminationGracePeriodSeconds"] > options.shutdown_delay_secs + options.exit_timeout_secs
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"http": options.http.port, "grpc": options.grpc.port, "metrics": options.metrics.port}

    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": by_kind["Deployment"][0]["metadata"]["name"]}
    scalers = [*by_kind.get("HorizontalPodAutoscaler", []), *by_kind.get("ScaledObject", [])]
    assert all(scaler["spec"]["scaleTargetRef"] == target for scaler in scalers)
    assert ("replicas" in by_kind["Deployment"][0]["spec"]) is not bool(scalers)
    services = {service["metadata"]["name"]: service["spec"]["ports"] for service in by_kind["Service"]}
    for route in (*by_kind.get("HTTPRoute", []), *by_kind.get("GRPCRoute", [])):
        for rule in route["spec"]["rules"]:
            (backend,) = rule["backendRefs"]
            assert backend["port"] in [port["port"] for port in services[backend["name"]]]
    for monitor in by_kind.get("ServiceMonitor", []):
        chosen = [
            service
            for service in by_kind["Service"]
            if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        ]
        assert [service["metadata"]["name"] for service in chosen] == [target["name"]]
        assert "metrics" in [port["name"] for port in chosen[0]["spec"]["ports"]]
    for policy in by_kind.get("BackendTrafficPolicy", []):
        for reference in policy["spec"]["targetRefs"]:
            assert reference["name"] in [route["metadata"]["name"] for route in by_kind[reference["kind"]]]
    for scaled in by_kind.get("ScaledObject", []):
        for trigger in scaled["spec"]["triggers"]:
            promql.parse(trigger["metadata"]["query"])


@pytest.mark.parametrize("name", REFUSED)
def test_chart_refuses_values_that_cannot_work(name: str, tmp_path: Path) -> None:
    values, text = REFUSED[name]
    file = values_file(tmp_path, values)
    assert text in helm("template", "release", CHART, "--values", file, accepted=False)


def test_helm_lint_is_clean(tmp_path: Path) -> None:
    for values in COMBINATIONS.values():
        out = helm("lint", "--strict", CHART, "--values", values_file(tmp_path, values))
        assert "[WARNING]" not in out
        assert "[ERROR]" not in out


def test_values_have_a_schema_each() -> None:
    """So that a misspelt value is refused at each level that the chart itself defines."""
    import yaml

    def lacking(values: Object, schema: Object, path: str) -> Iterator[str]:
        for name, value in values.items():
            known = schema.get("properties", {})
            if name not in known and not {"$ref", "additionalProperties"} & schema.keys():
                yield f"{path}{name}"
            elif isinstance(value, dict) and "properties" in known.get(name, {}):
                yield from lacking(value, known[name], f"{path}{name}.")

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [path for path in lacking(values, schema, "") if not path.endswith(".enabled")] == []


def test_plain_manifests_are_those_of_the_chart(tmp_path: Path) -> None:
    folder = DEPLOY / "kubernetes"
    copy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copy)
    helm_program = os.environ.get("HALIMEDE_HELM") or "helm"
    helm("version")
    subprocess.run(
        [copy / "kubernetes" / "render"], env={**os.environ, "HELM": helm_program}, timeout=LIMIT, check=True
    )
    for name in ("halimede.yaml", "gateway.yaml"):
        text = (folder / name).read_text()
        assert text == (copy / "kubernetes" / name).read_text(), f"run deploy/kubernetes/render: {name} is old"
        for document in objects(text):
            check(document)


def test_kserve_manifests() -> None:
    runtimes = objects((DEPLOY / "kserve" / "servingruntime.yaml").read_text())
    (service,) = objects((DEPLOY / "kserve" / "inferenceservice.yaml").read_text())
    check(service)
    for runtime in runtimes:
        check(runtime)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"containers": runtime["spec"]["containers"]},
        }
        check(pod)
        (container,) = runtime["spec"]["containers"]
        options = parse(container["args"][1:], {})
        (port,) = container["ports"]
        expected = {"http1": options.http.port, "h2c": options.grpc.port}
        assert port["containerPort"] == expected[port["name"]]
        assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == str(options.metrics.port)
    model = service["spec"]["predictor"]["model"]
    chosen = next(runtime for runtime in runtimes if runtime["metadata"]["name"] == model["runtime"])
    assert model["protocolVersion"] in chosen["spec"]["protocolVersions"]
    assert model["modelFormat"]["name"] in [each["name"] for each in chosen["spec"]["supportedModelFormats"]]
    assert service["spec"]["predictor"]["terminationGracePeriodSeconds"] > 15
