"""The manifests of the overlays as kustomize renders them: valid, and right for how a pod starts and ends."""

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.dockerfile import FOLDER, environment_of, stages
from tests.docker.metric_names import labels_of_samples
from timers.core.durations import parse_ms
from timers.settings import SECRET_NAMES, load_settings

OVERLAYS = ("dev", "prod", "sentinel", "cluster")
SYSTEMD = "systemd-analyze"
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


@cache
def manifests(overlay: str) -> Sequence[Any]:
    """All of an overlay, for reading."""
    return list(yaml.safe_load_all(rendered(overlay)))


def of_kind(overlay: str, *kinds: str) -> dict[str, Any]:
    """The manifests of these kinds, by name."""
    found = [each for each in manifests(overlay) if each["kind"] in kinds]
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
    # Resources of the Prometheus operator. Kubernetes has no schema for them.
    operators = {"ServiceMonitor", "PrometheusRule"} if overlay == "prod" else set()
    assert set(re.findall(r"Couldn't find schema for kind (\w+)", said)) == operators


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


def environment(overlay: str, name: str) -> dict[str, str]:
    """The variables of a pod's container; those of the pod itself are empty."""
    (container,) = pods(overlay)[name]["containers"]
    maps = [of_kind(overlay, "ConfigMap")[each["configMapRef"]["name"]]["data"] for each in container["envFrom"]]
    own = {each["name"]: each.get("value", "") for each in container["env"]}
    return {name: value for given in (*maps, own) for name, value in given.items()}


@BOTH
def test_the_grace_period_fits_the_drain(overlay: str) -> None:
    for name in ("timers-api", "timers-worker"):
        (container,) = pods(overlay)[name]["containers"]
        drain = environment(overlay, name)["TIMERS_DRAIN_TIMEOUT"]
        waits = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pods(overlay)[name]["terminationGracePeriodSeconds"] >= waits + seconds(drain) + 5


def mounted(overlay: str, name: str) -> dict[str, str]:
    """The secrets of a pod, by the folder where it finds them."""
    (container,) = pods(overlay)[name]["containers"]
    secrets = {
        each["name"]: each["secret"]["secretName"] for each in pods(overlay)[name]["volumes"] if "secret" in each
    }
    return {each["mountPath"]: secrets[each["name"]] for each in container["volumeMounts"] if each["name"] in secrets}


@BOTH
def test_containers_get_only_settings_and_ports_of_the_image(overlay: str, tmp_path: Path) -> None:
    image = environment_of(stages()[-1])
    (tmp_path / "redis-url").write_text("redis://redis:6379/5\n")
    (tmp_path / "api-keys").write_text(f"shop:{'0' * 64}:*:read\n")
    for name in ("timers-api", "timers-worker"):
        (container,) = pods(overlay)[name]["containers"]
        given = {
            name: str(tmp_path / Path(value).name) if name.endswith("_FILE") else value
            for name, value in environment(overlay, name).items()
        }
        settings = load_settings({**given, "TIMERS_ROLES": container["args"][-1], "TIMERS_HTTP_HOST": "127.0.0.1"})
        assert settings.redis_url == "redis://redis:6379/5"
        assert (settings.api_keys is not None) is (name == "timers-api")
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
def test_secrets_are_mounted_files_that_the_overlay_does_not_contain(overlay: str) -> None:
    assert not of_kind(overlay, "Secret")
    for name in ("timers-api", "timers-worker"):
        files = {key: value for key, value in environment(overlay, name).items() if key.endswith("_FILE")}
        assert {key.removesuffix("_FILE") for key in files} <= set(SECRET_NAMES)
        folders = mounted(overlay, name)
        assert {str(Path(path).parent) for path in files.values()} == folders.keys()
        assert ("timers-api" in folders.values()) is (name == "timers-api")


@BOTH
def test_all_settings_are_in_one_map(overlay: str) -> None:
    maps = {
        name: each["data"] for name, each in of_kind(overlay, "ConfigMap").items() if name.startswith("timers-settings")
    }
    (settings,) = maps.values()
    for name in ("timers-api", "timers-worker"):
        (container,) = pods(overlay)[name]["containers"]
        assert [each["configMapRef"]["name"] for each in container["envFrom"]] == list(maps)
        assert not settings.keys() & {each["name"] for each in container["env"]}


@BOTH
def test_budgets_services_and_the_autoscaler_select_existing_pods(overlay: str) -> None:
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for name, each in of_kind(overlay, "Deployment", "StatefulSet").items()
    }

    def selected(wanted: dict[str, str]) -> set[str]:
        return {name for name, has in labels.items() if wanted.items() <= has.items()}

    budgets = of_kind(overlay, "PodDisruptionBudget")
    several = {"timers-api", "timers-worker"}
    several |= {"sentinel": {"redis", "sentinel"}, "cluster": {"redis"}}.get(overlay, set())
    assert {name: selected(each["spec"]["selector"]["matchLabels"]) for name, each in budgets.items()} == {
        name: {name} for name in several
    }
    services = {name: selected(each["spec"]["selector"]) for name, each in of_kind(overlay, "Service").items()}
    for name in ("redis", "sentinel"):
        assert services.pop(name, {name}) == {name}
    assert services.pop("timers-metrics", {"timers-api", "timers-worker"}) == {"timers-api", "timers-worker"}
    assert services == {"timers-api": {"timers-api"}}
    (scaler,) = of_kind(overlay, "HorizontalPodAutoscaler").values()
    assert scaler["spec"]["scaleTargetRef"]["name"] in labels
    assert "replicas" not in of_kind(overlay, "Deployment")["timers-worker"]["spec"]
    (metric,) = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] in labels_of_samples()


@BOTH
def test_the_network_policies_open_redis_and_what_a_worker_calls(overlay: str) -> None:
    policies = {name: each["spec"] for name, each in of_kind(overlay, "NetworkPolicy").items()}
    policy = policies["timers"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert 6379 in ports
    assert all(rule.get("to") for rule in policy["egress"])
    called = [port["port"] for rule in policies["timers-worker"]["egress"] for port in rule["ports"]]
    assert called == [443, 25, 465, 587, 4318]  # webhooks and gateways, mail, traces


def test_the_monitor_finds_its_service_and_makes_a_job_of_each_role() -> None:
    (monitor,) = of_kind("prod", "ServiceMonitor").values()
    service = of_kind("prod", "Service")["timers-metrics"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    (relabeling,) = endpoint["relabelings"]
    assert (relabeling["targetLabel"], relabeling["replacement"]) == ("job", "timers-$1")


def test_the_operator_gets_the_same_alerts_and_grafana_the_same_board() -> None:
    rules = of_kind("prod", "PrometheusRule")["timers"]["spec"]
    assert rules == yaml.safe_load((FOLDER / "prometheus" / "rules.yml").read_text()), "run scripts/alerts"
    board = of_kind("prod", "ConfigMap")["timers-board"]
    assert board["data"] == {"timers.json": (FOLDER / "grafana" / "boards" / "timers.json").read_text()}
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_ingress_reaches_the_api_over_tls_and_through_the_network_policy() -> None:
    spec = of_kind("prod", "Ingress")["timers"]["spec"]
    (tls,), (rule,) = spec["tls"], spec["rules"]
    assert tls["hosts"] == [rule["host"]]
    assert environment("prod", "timers-api")["TIMERS_PUBLIC_URL"] == f"https://{rule['host']}"
    (path,) = rule["http"]["paths"]
    service = of_kind("prod", "Service")[path["backend"]["service"]["name"]]
    assert path["backend"]["service"]["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]
    policy = of_kind("prod", "NetworkPolicy")["timers-ingress"]["spec"]
    assert policy["podSelector"]["matchLabels"] == service["spec"]["selector"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze (Debian: systemd)")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (FOLDER / "systemd" / "timers.service").read_text()
    unit = tmp_path / "timers.service"
    unit.write_text(text.replace("/opt/timers/bin/timers", str(Path(sysconfig.get_path("scripts")) / "timers")))
    done = subprocess.run([SYSTEMD, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    given = dict(re.findall(r"^Environment=(\w+)=(\S+)$", text, re.MULTILINE))
    credentials = re.findall(r"^LoadCredential=([\w-]+):", text, re.MULTILINE)
    assert {name.removesuffix("_FILE") for name in given} == {"TIMERS_REDIS_URL", "TIMERS_API_KEYS"}
    assert list(given.values()) == [f"%d/{name}" for name in credentials]
    stops = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert stops is not None
    assert int(stops[1]) >= load_settings({}).drain_timeout_ms / 1000 + 5
