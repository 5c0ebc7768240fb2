"""The manifests in deploy/kubernetes: sound by schema, and agreeing with the code, with each other and with their page."""

from __future__ import annotations

import ipaddress
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import promql_parser
import pytest
import yaml

import cantata
from cantata.config import loading
from cantata.engine.fleet import load
from cantata.operation.embedded import stack_plan
from cantata.operation.metrics.families import BY_NAME
from cantata.surfaces.cli.main import COMMANDS
from cantata.surfaces.gateway import serve
from tests import manifests
from tests.acceptance.pages import parse
from tests.manifests import FOLDER, TOP, Manifest

NAME, PART = "app.kubernetes.io/name", "app.kubernetes.io/part-of"
FOREIGN = {"REDIS_PASSWORD", "REDISCLI_AUTH"}  # of the Redis container alone
END_S = 10  # what a worker needs after its drain time, and some more
needs_renderer = pytest.mark.skipif(
    manifests.renderer() is None, reason="neither kubectl nor kustomize is here to render overlays"
)


@cache
def every() -> tuple[Manifest, ...]:
    return tuple(manifest for path in manifests.files() for manifest in manifests.read(path))


def of(*kinds: str) -> list[Manifest]:
    return [manifest for manifest in every() if manifest["kind"] in kinds]


def name_of(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


WORKLOADS = of("Deployment", "StatefulSet")
OURS = of("Deployment")
SETTINGS = dict(re.findall(r"^(\w+)=(.*)$", (FOLDER / "base" / "settings.env").read_text(), re.MULTILINE))


def pod(workload: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def container(workload: Manifest) -> dict[str, Any]:
    (only,) = pod(workload)["containers"]
    return dict(only)


def labels(workload: Manifest) -> dict[str, str]:
    return dict(workload["spec"]["template"]["metadata"]["labels"])


def workload(name: str) -> Manifest:
    return next(each for each in WORKLOADS if name_of(each) == name)


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def selects(selector: Mapping[str, Any], found: Mapping[str, str]) -> bool:
    return set(selector.get("matchLabels", {}).items()) <= set(found.items())


# By schema


def test_the_manifests_are_sound() -> None:
    assert manifests.faults() == []


def test_every_file_is_named_by_a_kustomization() -> None:
    named = {path.resolve() for path in (*manifests.files(), *manifests.kustomizations())}
    for path in manifests.kustomizations():
        document = yaml.safe_load(path.read_text())
        named |= {(path.parent / patch["path"]).resolve() for patch in document.get("patches", []) if "path" in patch}
        named |= {
            (path.parent / file).resolve()
            for each in document.get("configMapGenerator", [])
            for file in manifests.generated_from(each)
        }

    assert {path.resolve() for path in FOLDER.rglob("*") if path.is_file()} == named


MISTAKES = [
    ("base/tools.yaml", "replicas: 2", "replicas: two", "'two' is not of type"),
    ("base/tools.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true", "readOnlyRootFileSystem"),
    ("base/networkpolicies.yaml", "policyTypes: [Ingress]", "policyTypes: Ingress", "policyTypes"),
    (
        "components/keda/scaledobjects.yaml",
        'targetValue: "2"',
        "targetValue: 2",
        "not valid under any of the given schemas",
    ),
    ("components/keda/scaledobjects.yaml", "minReplicaCount", "minReplicas", "minReplicas"),
    ("components/keda-prometheus/tools.yaml", "threshold", "treshold", "'treshold': '2'"),
    ("base/kustomization.yaml", "- flower.yaml", "- flowers.yaml", "there is no flowers.yaml"),
    ("overlays/production/kustomization.yaml", "components:", "component:", "'component' was unexpected"),
]


@pytest.mark.parametrize(("file", "right", "wrong", "said"), MISTAKES)
def test_a_mistake_is_found(tmp_path: Path, file: str, right: str, wrong: str, said: str) -> None:
    copied = shutil.copytree(FOLDER, tmp_path / "kubernetes")
    text = (copied / file).read_text()
    assert right in text
    (copied / file).write_text(text.replace(right, wrong, 1))

    assert said in "\n".join(manifests.faults(copied))


# With the code


@pytest.mark.parametrize("each", OURS, ids=name_of)
def test_its_command_line_is_one_of_ours(each: Manifest) -> None:
    words = container(each)["args"]

    assert words[0] in COMMANDS
    parse(words)


def variables() -> Iterator[str]:
    yield from SETTINGS
    for each in WORKLOADS:
        yield from (variable["name"] for variable in container(each).get("env", []))


def test_every_variable_is_read_by_something() -> None:
    sources = "\n".join(path.read_text() for root in ("orchestrator", "workers") for path in (TOP / root).rglob("*.py"))
    read = set(re.findall(r'"((?:CANTATA|REDIS)_\w+)"', sources))

    assert {name for name in variables() if not name.startswith("FLOWER_")} - read == FOREIGN
    assert {name for name in variables() if name.startswith("FLOWER_")} == {"FLOWER_BASIC_AUTH"}


def test_the_configuration_to_start_from_loads() -> None:
    (file,) = (FOLDER / "base" / "config").iterdir()

    assert loading.load(file).defaults.agent == "assistant"
    assert Path(SETTINGS["CANTATA_CONFIG"]).name == file.name
    for each in OURS:
        mounts = {mount["name"]: mount["mountPath"] for mount in container(each)["volumeMounts"]}
        assert mounts["config"] == str(Path(SETTINGS["CANTATA_CONFIG"]).parent)
        assert SETTINGS["CANTATA_HOME"].startswith(mounts["tmp"])


def test_images_are_of_this_version_and_redis_is_that_of_compose() -> None:
    compose = yaml.safe_load((TOP / "docker-compose.yml").read_text())

    assert {container(each)["image"] for each in OURS} == {f"cantata:{cantata.__version__}"}
    assert container(workload("cantata-redis"))["image"] == compose["services"]["redis"]["image"]


def test_ports_are_those_that_the_commands_listen_on() -> None:
    for name, usual in (("cantata-gateway", stack_plan.GATEWAY_PORT), ("cantata-flower", 5555)):
        words, ports = (
            container(workload(name))["args"],
            {port["name"]: port["containerPort"] for port in container(workload(name))["ports"]},
        )
        assert int(option(words, "--port")) == ports["http"] == usual
    for each in OURS:
        ports = {port["name"]: port["containerPort"] for port in container(each)["ports"]}
        assert ports.get("metrics", 9464) == int(SETTINGS["CANTATA_METRICS_PORT"])
        told = each["spec"]["template"]["metadata"].get("annotations", {}).get("prometheus.io/port")
        assert told == (str(ports["metrics"]) if "metrics" in ports else None)


def test_a_pod_is_given_longer_to_end_than_it_takes() -> None:
    drain_s = float(SETTINGS["CANTATA_DRAIN_S"])
    for name in ("coordinator", "agents", "tools"):
        assert pod(workload(f"cantata-{name}"))["terminationGracePeriodSeconds"] >= drain_s + END_S

    gateway = workload("cantata-gateway")
    before_s = container(gateway)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod(gateway)["terminationGracePeriodSeconds"] >= before_s + serve.GRACE_S + END_S


def test_the_two_processes_of_a_tools_pod_fit_in_its_memory_and_have_a_processor_each() -> None:
    tools = container(workload("cantata-tools"))
    bound_mb = int(next(each["value"] for each in tools["env"] if each["name"] == "CANTATA_TOOL_MEMORY_MB"))
    at_once = int(option(tools["args"], "--concurrency"))

    assert tools["resources"]["limits"] == {"cpu": str(at_once), "memory": "2Gi"}
    assert at_once * bound_mb + 256 <= 2048


# With each other


@pytest.mark.parametrize("each", WORKLOADS, ids=name_of)
def test_a_pod_is_restricted_and_has_bounds_and_probes(each: Manifest) -> None:
    spec, only = pod(each), container(each)

    assert each["spec"]["selector"]["matchLabels"].items() <= labels(each).items()
    assert labels(each)[PART] == "cantata"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert {"cpu", "memory"} <= only["resources"]["requests"].keys()
    assert "memory" in only["resources"]["limits"]
    assert {"startupProbe", "livenessProbe"} <= only.keys()


def test_ports_that_are_named_exist() -> None:
    for each in WORKLOADS:
        ports = {port["name"] for port in container(each)["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container(each).get(probe, {})
            named = asked.get("httpGet", asked.get("tcpSocket", {})).get("port")
            assert named is None or named in ports
    for service in of("Service"):
        (target,) = (each for each in WORKLOADS if selects({"matchLabels": service["spec"]["selector"]}, labels(each)))
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= {
            port["name"] for port in container(target)["ports"]
        }


@pytest.mark.parametrize("each", WORKLOADS, ids=name_of)
def test_a_pod_of_ours_keeps_no_node_and_none_is_started_anew_because_redis_is_away(each: Manifest) -> None:
    annotations = each["spec"]["template"]["metadata"]["annotations"]

    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == str(each in OURS).lower()
    if name_of(each) in ("cantata-agents", "cantata-tools", "cantata-coordinator"):
        alone = {"path": "/metrics", "port": "metrics"}  # is answered before the worker has reached Redis
        assert [container(each)[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness")] == [alone, alone]
        assert container(each)["readinessProbe"]["exec"]["command"][0] == "cantata-healthy"


def test_the_operator_of_prometheus_scrapes_all_that_have_metrics_by_the_jobs_of_the_example() -> None:
    (monitor,) = of("PodMonitor")
    (chosen,) = monitor["spec"]["selector"]["matchExpressions"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    have = {
        labels(each)[NAME] for each in OURS if endpoint["port"] in {port["name"] for port in container(each)["ports"]}
    }

    assert (chosen["key"], chosen["operator"], monitor["spec"]["jobLabel"]) == (NAME, "In", NAME)
    assert set(chosen["values"]) == have
    jobs = re.findall(r'job="([\w-]+)"', (TOP / "deploy" / "monitoring" / "alerts.yml").read_text())
    assert set(jobs) <= have


def test_the_rules_become_an_object_of_the_operator_as_the_page_says() -> None:
    (command,) = re.findall(r"^(\{ printf .*\}) \| kubectl apply -f -$", PAGE, re.MULTILINE)
    made = subprocess.run(["sh", "-c", command], cwd=TOP, capture_output=True, text=True, timeout=20, check=True)
    rules = yaml.safe_load(made.stdout)

    assert (rules["apiVersion"], rules["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((TOP / "deploy" / "monitoring" / "alerts.yml").read_text())


def test_what_has_several_pods_loses_one_at_a_time() -> None:
    budgets = {name_of(each): each["spec"] for each in of("PodDisruptionBudget")}

    assert budgets.keys() == {name_of(each) for each in OURS if each["spec"]["replicas"] > 1}
    for name, spec in budgets.items():
        assert spec["maxUnavailable"] == 1
        assert spec["selector"] == workload(name)["spec"]["selector"]


def test_secrets_are_only_named_and_the_example_has_all_that_are() -> None:
    example = {name_of(each): set(each["stringData"]) for each in of("Secret")}
    named: dict[str, set[str]] = {}
    for each in WORKLOADS:
        for variable in container(each).get("env", []):
            if "valueFrom" in variable:
                key = variable["valueFrom"]["secretKeyRef"]
                named.setdefault(key["name"], set()).add(key["key"])
        for source in container(each).get("envFrom", []):
            if "secretRef" in source:
                named.setdefault(source["secretRef"]["name"], {"OPENAI_API_KEY"})
        for volume in pod(each).get("volumes", []):
            if "secret" in volume:
                named.setdefault(volume["secret"]["secretName"], {"tokens.yaml"})

    assert named == example
    assert [path.name for path in manifests.files() for each in manifests.read(path) if each["kind"] == "Secret"] == [
        "secrets.example.yaml"
    ] * 4
    assert all("CHANGE-ME" in value for each in of("Secret") for value in each["stringData"].values())


def test_only_agents_get_the_keys_of_models() -> None:
    assert [
        name_of(each)
        for each in OURS
        if {"secretRef"} & {key for source in container(each)["envFrom"] for key in source}
    ] == ["cantata-agents"]


# Who may talk to whom

OUTSIDE, INSIDE = ipaddress.ip_address("93.184.215.14"), ipaddress.ip_address("10.1.2.3")


def allowed(
    policies: list[Manifest], whose: Mapping[str, str], way: str, peer: object, port: int, names: Mapping[str, int]
) -> bool:
    """Whether the pod with these labels may send to, or hear from, a peer: labels of a pod, `namespace=...`, or an address."""
    rules = [
        rule
        for policy in policies
        if selects(policy["spec"]["podSelector"], whose) and way in policy["spec"]["policyTypes"]
        for rule in policy["spec"].get(way.lower(), [])
    ]
    return any(
        any(_fits(each, peer) for each in rule["from" if way == "Ingress" else "to"])
        and any(names.get(str(each["port"]), each["port"]) == port for each in rule["ports"])
        for rule in rules
    )


def _fits(rule: Mapping[str, Any], peer: object) -> bool:
    if isinstance(peer, ipaddress.IPv4Address):
        block = rule.get("ipBlock", {"cidr": "255.255.255.255/32"})
        networks = [ipaddress.ip_network(each) for each in (block["cidr"], *block.get("except", []))]
        return peer in networks[0] and not any(peer in network for network in networks[1:])
    if isinstance(peer, str):
        return "namespaceSelector" in rule and peer in {
            f"{key}={value}" for key, value in rule["namespaceSelector"]["matchLabels"].items()
        }
    assert isinstance(peer, dict)
    return "podSelector" in rule and selects(rule["podSelector"], peer)


def talk(source: str | Manifest, target: object, port: int) -> bool:
    """Whether one may reach the other, by the policies of base and components: both ends must allow it, if they are pods of ours."""
    policies = [
        each
        for each in of("NetworkPolicy")
        if each["spec"].get("egress", [{}])[0].get("to", [{}])[0].get("ipBlock", {}).get("cidr") != "10.0.0.0/8"
    ]
    sends = hears = True
    if isinstance(source, dict):
        sends = allowed(
            policies, labels(source), "Egress", labels(target) if isinstance(target, dict) else target, port, {}
        )
    if isinstance(target, dict):
        names = {each["name"]: each["containerPort"] for each in container(target)["ports"]}
        hears = allowed(
            policies, labels(target), "Ingress", labels(source) if isinstance(source, dict) else source, port, names
        )
    return sends and hears


def test_nothing_is_allowed_that_is_not_named() -> None:
    nothing = next(each for each in of("NetworkPolicy") if name_of(each) == "cantata-nothing")

    assert nothing["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize("each", OURS, ids=name_of)
def test_all_reach_redis_and_the_name_server_and_nothing_else_inside(each: Manifest) -> None:
    assert talk(each, workload("cantata-redis"), 6379)
    assert talk(each, "kubernetes.io/metadata.name=kube-system", 53)
    assert not talk(each, INSIDE, 443)
    for other in OURS:
        assert not any(talk(each, other, port["containerPort"]) for port in container(other)["ports"])


def test_only_agents_reach_the_outside_and_only_by_https() -> None:
    assert [name_of(each) for each in WORKLOADS if talk(each, OUTSIDE, 443)] == ["cantata-agents"]
    assert not any(talk(each, OUTSIDE, port) for each in WORKLOADS for port in (22, 80, 6379))


def test_who_is_outside_reaches_what_is_for_it() -> None:
    heard = {
        (who, name_of(each), port["containerPort"])
        for who in (
            "cantata/client=true",
            "cantata/operator=true",
            *(f"kubernetes.io/metadata.name={name}" for name in ("monitoring", "keda", "other")),
        )
        for each in WORKLOADS
        for port in container(each)["ports"]
        if talk(who, each, port["containerPort"])
    }

    assert heard == {
        ("cantata/client=true", "cantata-gateway", 8800),
        ("cantata/operator=true", "cantata-flower", 5555),
        ("kubernetes.io/metadata.name=keda", "cantata-gateway", 9464),
        *(
            ("kubernetes.io/metadata.name=monitoring", f"cantata-{name}", 9464)
            for name in ("coordinator", "agents", "tools", "gateway")
        ),
    }


# Scaling


@pytest.mark.parametrize("each", of("ScaledObject"), ids=name_of)
def test_a_queue_is_scaled_by_what_is_ready_and_leased(each: Manifest) -> None:
    target = workload(each["spec"]["scaleTargetRef"]["name"])
    words = container(target)["args"]
    (trigger,) = each["spec"]["triggers"]
    asked = urlsplit(trigger["metadata"]["url"])
    service = next(found for found in of("Service") if asked.hostname == f"{name_of(found)}.cantata.svc")

    assert trigger["metadata"]["valueLocation"] == f"queues.{words[1]}.work"
    assert float(trigger["metadata"]["targetValue"]) <= int(option(words, "--concurrency"))
    assert [port["port"] for port in service["spec"]["ports"]] == [asked.port]
    assert asked.path == "/load"
    assert "work" in load.QueueLoad.model_fields
    assert {BY_NAME[f"cantata_queue_{part}"].labels for part in ("ready", "paused", "leased")} == {("queue",)}
    (patch,) = manifests.read(FOLDER / "components" / "keda-prometheus" / f"{words[1]}.yaml")
    (other,) = patch["spec"]["triggers"]
    assert other["metadata"]["threshold"] == trigger["metadata"]["targetValue"]
    promql_parser.parse(other["metadata"]["query"])
    assert re.findall(r'(\w+)\{queue="(\w+)"\}', other["metadata"]["query"]) == [
        ("cantata_queue_ready", words[1]),
        ("cantata_queue_paused", words[1]),
        ("cantata_queue_leased", words[1]),
    ]


@needs_renderer
def test_scaling_down_waits_and_drains_and_the_number_of_pods_is_the_scalers() -> None:
    rendered = manifests.render(FOLDER / "overlays" / "production")
    found = {(each["kind"], name_of(each)): each for each in rendered}

    for name in ("cantata-agents", "cantata-tools"):
        spec = found["ScaledObject", name]["spec"]
        down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        assert down["stabilizationWindowSeconds"] >= 300
        assert (
            min(policy["periodSeconds"] for policy in down["policies"])
            >= pod(workload(name))["terminationGracePeriodSeconds"]
        )
        assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
        assert "replicas" not in found["Deployment", name]["spec"]
    assert found["Deployment", "cantata-coordinator"]["spec"]["replicas"] == 2
    assert ("StatefulSet", "cantata-redis") not in found


@needs_renderer
def test_a_changed_configuration_or_setting_rolls_the_pods() -> None:
    rendered = manifests.render(FOLDER / "overlays" / "development")
    generated, settings = (
        next(name_of(each) for each in rendered if each["kind"] == "ConfigMap" and name_of(each).startswith(name))
        for name in ("cantata-config-", "cantata-settings-")
    )
    assert {
        source["configMapRef"]["name"]
        for each in rendered
        if each["kind"] == "Deployment"
        for source in container(each)["envFrom"]
        if "configMapRef" in source
    } == {settings}

    used = {
        volume["configMap"]["name"]
        for each in rendered
        if each["kind"] == "Deployment"
        for volume in pod(each)["volumes"]
        if "configMap" in volume
    }
    assert used == {generated}
    assert {each["metadata"].get("namespace") for each in rendered if each["kind"] != "Namespace"} == {"cantata"}


# With the page

PAGE = (TOP / "docs" / "kubernetes.md").read_text()


def test_the_page_names_files_that_exist() -> None:
    named = set(re.findall(r"deploy/kubernetes/[\w./-]*\w", PAGE))

    assert {path for path in named if not (TOP / path).exists()} == set()
    assert {f"deploy/kubernetes/overlays/{overlay.name}" for overlay in manifests.overlays()} <= named


@needs_renderer
def test_the_overlay_that_the_page_shows_renders(tmp_path: Path) -> None:
    copied = shutil.copytree(TOP / "deploy", tmp_path / "deploy")
    (shown,) = re.findall(r"```text\n(# kustomization.yaml, in a folder of yours\n.*?)```", PAGE, re.DOTALL)
    assert "cantata-settings" in shown
    mine = copied / "kubernetes" / "overlays" / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(shown)
    (mine / "cantata.yaml").write_text("version: 1\n")

    rendered = manifests.render(mine)

    assert [fault for each in rendered for fault in manifests.faults_of(each, "mine")] == []
    assert {container(each)["image"] for each in rendered if each["kind"] == "Deployment"} == {
        "images.example.com/cantata:0.1.0"
    }
    assert [each["data"] for each in rendered if name_of(each).startswith("cantata-config-")] == [
        {"cantata.yaml": "version: 1\n"}
    ]
    (settings,) = (each["data"] for each in rendered if name_of(each).startswith("cantata-settings-"))
    assert settings.keys() == SETTINGS.keys()
    assert {name for name in SETTINGS if settings[name] != SETTINGS[name]} == {"CANTATA_LOG_LEVEL"}
    assert [each["metadata"]["namespace"] for each in rendered if each["kind"] == "PodMonitor"] == ["cantata"]
    assert [each["spec"]["triggers"][0]["type"] for each in rendered if each["kind"] == "ScaledObject"] == [
        "prometheus"
    ] * 2
