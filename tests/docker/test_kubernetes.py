"""The manifests of both overlays as kustomize renders them: valid, and right for how a pod starts and ends."""

import re
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.dockerfile import FOLDER, environment_of, stages
from tests.docker.metric_names import labels_of_samples
from timers.core.durations import parse_ms
from timers.settings import load_settings

OVERLAYS = ("dev", "prod")
BOTH = pytest.mark.parametrize("overlay", OVERLAYS)


@cache
def rendered(overlay: str) -> str:
    """An overlay as kustomize renders it. Without kustomize the test is skipped."""
    programs = {"kustomize": "build", "kubectl": "kustomize"}
    command = next(([name, verb] for name, verb in programs.items() if shutil.which(name)), None)
    if command is None:
        pytest.skip("neither kustomize nor kubectl on this machine")
    words = [*command, str(FOLDER / "kubernetes" / "overlays" / overlay)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_kind(overlay: str, *kinds: str) -> dict[str, Any]:
    """The manifests of these kinds, by name."""
    found = [each for each in yaml.safe_load_all(rendered(overlay)) if each["kind"] in kinds]
    return {each["metadata"]["name"]: each for each in found}


def pods(overlay: str) -> dict[str, Any]:
    """The pod specs, by the name of what starts them."""
    owners = of_kind(overlay, "Deployment", "StatefulSet")
    return {name: each["spec"]["template"]["spec"] for name, each in owners.items()}


def seconds(value: str) -> float:
    return parse_ms(value) / 1000


def validated(path: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sysconfig.get_path("scripts")) / "kubernetes-validate"
    return subprocess.run([str(program), "--strict", str(path)], capture_output=True, text=True, check=False)


@BOTH
def test_every_manifest_fits_its_schema(overlay: str, tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(rendered(overlay))
    done = validated(tmp_path / "all.yaml")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "passed for resource deployment/timers-worker" in said
    # A resource of the Prometheus operator. Kubernetes has no schema for it.
    assert set(re.findall(r"Couldn't find schema for kind (\w+)", said)) == {"ServiceMonitor"}


def test_a_wrong_field_is_found(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(rendered("prod").replace("livenessProbe:", "livenesProbe:"))
    assert validated(tmp_path / "all.yaml").returncode != 0


@BOTH
def test_no_pod_may_more_than_it_needs(overlay: str) -> None:
    for spec in pods(overlay).values():
        assert spec["enableServiceLinks"] is False
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"memory"} <= set(container["resources"]["limits"])
            assert {"livenessProbe", "readinessProbe"} <= set(container)


@BOTH
def test_pods_run_as_the_user_of_the_image(overlay: str) -> None:
    (user,) = [each.rest for each in stages()[-1] if each.name == "USER"]
    for name in ("timers-api", "timers-worker"):
        context = pods(overlay)[name]["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user


@BOTH
def test_the_grace_period_fits_the_drain(overlay: str) -> None:
    for name in ("timers-api", "timers-worker"):
        (container,) = pods(overlay)[name]["containers"]
        (drain,) = [each["value"] for each in container["env"] if each["name"] == "TIMERS_DRAIN_TIMEOUT"]
        waits = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pods(overlay)[name]["terminationGracePeriodSeconds"] >= waits + seconds(drain) + 5


@BOTH
def test_containers_get_only_settings_and_ports_of_the_image(overlay: str) -> None:
    image = environment_of(stages()[-1])
    for name in ("timers-api", "timers-worker"):
        (container,) = pods(overlay)[name]["containers"]
        given = {each["name"]: each.get("value", "") for each in container["env"]}
        settings = load_settings({**given, "TIMERS_ROLES": container["args"][-1], "TIMERS_HTTP_HOST": "127.0.0.1"})
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports["probes"] == int(image["TIMERS_PROBE_PORT"])
        assert ports.get("http", settings.http_port) == settings.http_port
        probes = [container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
        assert [(each["path"], each["port"]) for each in probes] == [
            ("/healthz", "probes"),
            ("/healthz", "probes"),
            ("/readyz", "probes"),
        ]


@BOTH
def test_secrets_are_named_and_not_contained(overlay: str) -> None:
    assert not of_kind(overlay, "Secret", "ConfigMap")
    for name in ("timers-api", "timers-worker"):
        (container,) = pods(overlay)[name]["containers"]
        secret = {each["name"] for each in container["env"] if "secretKeyRef" in each.get("valueFrom", {})}
        assert "TIMERS_REDIS_URL" in secret
        assert ("TIMERS_API_KEYS" in secret) is (name == "timers-api")


@BOTH
def test_budgets_services_and_the_autoscaler_select_existing_pods(overlay: str) -> None:
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for name, each in of_kind(overlay, "Deployment", "StatefulSet").items()
    }

    def selected(wanted: dict[str, str]) -> set[str]:
        return {name for name, has in labels.items() if wanted.items() <= has.items()}

    budgets = of_kind(overlay, "PodDisruptionBudget")
    assert {name: selected(each["spec"]["selector"]["matchLabels"]) for name, each in budgets.items()} == {
        "timers-api": {"timers-api"},
        "timers-worker": {"timers-worker"},
    }
    services = {name: selected(each["spec"]["selector"]) for name, each in of_kind(overlay, "Service").items()}
    assert services.pop("redis", {"redis"}) == {"redis"}
    assert services == {"timers-api": {"timers-api"}, "timers-metrics": {"timers-api", "timers-worker"}}
    (scaler,) = of_kind(overlay, "HorizontalPodAutoscaler").values()
    assert scaler["spec"]["scaleTargetRef"]["name"] in labels
    assert "replicas" not in of_kind(overlay, "Deployment")["timers-worker"]["spec"]
    (metric,) = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] in labels_of_samples()


@BOTH
def test_the_network_policy_opens_redis_and_names_every_destination(overlay: str) -> None:
    policy = of_kind(overlay, "NetworkPolicy")["timers"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert 6379 in ports
    assert all(rule.get("to") for rule in policy["egress"])


@BOTH
def test_the_monitor_finds_its_service_and_makes_the_jobs_that_the_alerts_know(overlay: str) -> None:
    (monitor,) = of_kind(overlay, "ServiceMonitor").values()
    service = of_kind(overlay, "Service")["timers-metrics"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    (relabeling,) = endpoint["relabelings"]
    assert (relabeling["targetLabel"], relabeling["replacement"]) == ("job", "timers-$1")
