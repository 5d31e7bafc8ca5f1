"""The compose file and the files it mounts: valid, and enough for a pod; checked without a container engine."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from tests.cli.commands import Process
from tests.docker.dockerfile import FOLDER
from tests.docker.metric_names import documented_metrics, labels_of_samples
from tests.install.environment import ROOT
from tests.members import declare
from tests.rights import documented, for_clusters
from tests.servers import ServerHandle, start_server
from tests.waiting import eventually, patient
from timers import TimerClient
from timers.client import client_over, open_store
from timers.core.model import Status
from timers.embedded import Family
from timers.errors import Unavailable
from timers.settings import load_settings
from timers.store.servers import connect

NEEDS_PROMTOOL = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: prometheus)")


FILES = ("compose.yaml", "compose.sentinel.yaml", "compose.cluster.yaml")
EACH = pytest.mark.parametrize("name", FILES)


def compose(name: str = FILES[0]) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def stack(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`docker/stack` in a copy of the repository's files that it needs."""
    if not (folder / "docker").exists():
        shutil.copytree(FOLDER, folder / "docker", ignore=shutil.ignore_patterns("secrets"))
        (folder / "timers" / "store").mkdir(parents=True)
        shutil.copy(ROOT / "timers" / "store" / "PROTOCOL.md", folder / "timers" / "store")
        (folder / ".venv").symlink_to(sys.prefix)
    return subprocess.run(
        [folder / "docker" / "stack", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def shell(command: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", command]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def used_names(text: str) -> set[str]:
    return set(re.findall(r"\btimers_[a-z_]+", text))


@EACH
def test_the_compose_file_fits_its_schema(name: str) -> None:
    program = Path(sysconfig.get_path("scripts")) / "check-jsonschema"
    words = [str(program), "--builtin-schema", "vendor.compose-spec", str(FOLDER / name)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@EACH
def test_every_file_that_is_mounted_is_there_or_is_a_secret_that_the_stack_makes(name: str, tmp_path: Path) -> None:
    made = stack(tmp_path, "secrets")
    assert made.returncode == 0, made.stderr
    given = compose(name)
    mounted = [volume.split(":")[0] for service in given["services"].values() for volume in service.get("volumes", ())]
    files = [path for path in mounted if path.startswith(".")] + [each["file"] for each in given["secrets"].values()]
    assert files
    assert [path for path in files if not (tmp_path / "docker" / path).exists()] == []


@EACH
def test_no_password_is_in_the_compose_file_and_all_images_are_pinned(name: str) -> None:
    images = [each["image"] for each in compose(name)["services"].values() if "image" in each]
    assert images
    assert all(re.fullmatch(r"timers:local|\S+:v?\d+\.\d+\.\d+(-alpine)?", each) for each in images)
    assert "PASSWORD:" not in (FOLDER / name).read_text()


def variant(name: str) -> dict[str, Any]:
    """The services of compose.yaml with those of the variant on top, as `docker compose` merges the keys used here."""
    merged: dict[str, Any] = compose()["services"]
    if name != FILES[0]:
        for service, given in compose(name)["services"].items():
            merged[service] = {**merged.get(service, {}), **given}
    return merged


@EACH
def test_the_logs_of_the_pods_do_not_fill_the_disk(name: str) -> None:
    services = variant(name)
    assert [services[pod]["logging"] for pod in ("api", "worker")] == [{"driver": "local"}] * 2


@EACH
def test_only_one_service_builds_the_image_of_the_pods(name: str) -> None:
    """Two would make an image each, which differ in a label: every `up` would start all pods anew."""
    services = variant(name)
    assert [each for each, given in services.items() if "build" in given] == ["api"]
    assert services["worker"]["image"] == services["api"]["image"]
    assert services["worker"]["pull_policy"] == "never"


def asks_nobody_outside(service: dict[str, Any]) -> bool:
    """Whether the engine answers itself for a host that is gone. Else the name goes to the DNS outside."""
    return bool(service.get("dns_opt") == ["ndots:1"] and service.get("dns_search") == ["."])


def test_a_name_of_a_dead_server_is_not_asked_for_outside() -> None:
    """Sentinels stop their failover (TILT) while a name takes two seconds."""
    for name in FILES:
        assert all(asks_nobody_outside(variant(name)[each]) for each in ("api", "worker"))
    servers = [given for given in compose(FILES[1])["services"].values() if "/start" in given.get("command", ())]
    assert len(servers) == 6
    assert all(asks_nobody_outside(each) for each in servers)


def data_volumes(name: str) -> set[str]:
    """The volumes in which the servers of the variant keep their data."""
    mounts = [each for service in variant(name).values() for each in service.get("volumes", ())]
    return {source for source, target, *_ in (each.split(":") for each in mounts) if target == "/data"}


def test_each_variant_keeps_its_data_in_volumes_of_its_own() -> None:
    """A node of a cluster crashes on data of a db other than 0, and a server whose replica took over has old data."""
    names = [name for file in FILES for name in data_volumes(file)]
    assert len(names) == 1 + 6 + 6
    assert len(names) == len(set(names))


@EACH
def test_no_container_leaves_a_volume_without_a_name_behind(name: str) -> None:
    """Redis's image declares one at /data, which the engine makes for each container that mounts nothing there."""
    for service, given in variant(name).items():
        mounted = {each.split(":")[1] for each in given.get("volumes", ())} | set(given.get("tmpfs", ()))
        assert not given.get("image", "").startswith("redis:") or "/data" in mounted, service


def test_pods_of_another_variant_start_anew() -> None:
    """`up` compares what a service says, not the files of its secrets."""
    for service in ("api", "worker"):
        labels = [variant(name)[service].get("labels", {}).get("variant") for name in FILES]
        assert len(labels) == len(set(labels))


def noting_docker(folder: Path) -> str:
    """A PATH with a `docker` that does nothing but write into the file `asked` what it was asked."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "docker").write_text(f'#!/bin/sh\necho "$@" >>{folder}/asked\n')
    (programs / "docker").chmod(0o755)
    return f"{programs}:{os.environ['PATH']}"


def test_up_ends_what_only_another_variant_has(tmp_path: Path) -> None:
    path = noting_docker(tmp_path)
    assert stack(tmp_path, "up", "cluster", PATH=path).returncode == 0
    asked = (tmp_path / "asked").read_text().splitlines()[-1].split()
    assert asked[:5] == ["compose", "--file", "compose.yaml", "--file", "compose.cluster.yaml"]
    assert {"up", "--wait", "--remove-orphans"} <= set(asked)


def test_what_runs_takes_the_secrets_that_up_makes_anew(tmp_path: Path) -> None:
    """Else the key that `up` names is refused, and a server that restarts refuses the pods."""
    path = noting_docker(tmp_path)
    for anew in (True, False):
        assert stack(tmp_path, "up", PATH=path).returncode == 0
        assert ("--force-recreate" in (tmp_path / "asked").read_text().splitlines()[-1].split()) is anew


def test_the_users_of_the_containers_can_read_what_is_mounted_from_a_checkout_of_its_owner(tmp_path: Path) -> None:
    path = noting_docker(tmp_path)
    stack(tmp_path, "secrets")
    assert shell(f"chmod -R go= {tmp_path / 'docker'}").returncode == 0
    assert stack(tmp_path, "up", PATH=path).returncode == 0
    for mount in {each for name in FILES for service in variant(name).values() for each in service.get("volumes", ())}:
        source = tmp_path / "docker" / mount.split(":")[0]
        for file in [source, *source.rglob("*")] if mount.startswith(".") else ():
            owner, others = file.stat().st_mode >> 6 & 0o5, file.stat().st_mode & 0o5
            assert others == owner, file


def test_a_pod_that_is_stopped_while_it_starts_ends_at_once() -> None:
    """Not after the grace period. The kernel drops a signal for which PID 1 has no handler yet."""
    assert all(compose()["services"][each]["init"] is True for each in ("api", "worker"))


def test_the_balancer_ends_open_streams_before_the_engine_kills_it() -> None:
    (seconds,) = re.findall(r"^ +hard-stop-after (\d+)s$", (FOLDER / "haproxy.cfg").read_text(), re.MULTILINE)
    assert int(seconds) < 10
    assert "stop_grace_period" not in compose()["services"]["balancer"]


def test_what_prometheus_saw_before_a_stop_rings_no_alert_after_the_start() -> None:
    seconds = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text())["global"]["scrape_interval"]
    given = compose()["services"]["prometheus"]["command"]
    assert seconds == "10s"
    assert "--query.lookback-delta=30s" in given
    rules = yaml.safe_load((FOLDER / "prometheus" / "rules.yml").read_text())["groups"][0]["rules"]
    waits = {rule["alert"] for rule in rules if "for" not in rule}
    assert {rule["alert"] for rule in rules} - waits >= {"TimersRedisDown", "TimersUncovered", "TimersNoWorker"}


def test_secrets_are_made_once(tmp_path: Path) -> None:
    stack(tmp_path, "secrets")
    folder = tmp_path / "docker" / "secrets"
    before = {path.name: path.read_text() for path in folder.iterdir()}
    of_sentinels = {"pods-sentinel.env", "replication", "sentinel"}
    of_clusters = {"pods-cluster.env", "redis-cluster.acl", "replication"}
    assert set(before) == {"api-key", "grafana", "pods.env", "redis.acl"} | of_sentinels | of_clusters
    assert folder.stat().st_mode & 0o077 == 0
    assert stack(tmp_path, "secrets").returncode == 0
    assert before == {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("verb", ["up", "down"])
def test_without_an_engine_there_is_one_clear_line(tmp_path: Path, verb: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "docker").write_text("#!/bin/sh\nexit 1\n")
    (programs / "docker").chmod(0o755)
    done = stack(tmp_path, verb, PATH=f"{programs}:{os.environ['PATH']}")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith(f"make {verb}: no container engine with compose answers here")
    assert not (tmp_path / "docker" / "secrets").exists()


def server_options(folder: Path, *, kubernetes: bool = False) -> list[str]:
    """The options of the compose file's Redis, or of the overlay's, with the secrets made in a folder."""
    options: list[str] = compose()["services"]["redis"]["command"][1:]
    if kubernetes:
        text = (FOLDER / "kubernetes" / "overlays" / "dev" / "redis.yaml").read_text()
        (options,) = (
            each["spec"]["template"]["spec"]["containers"][0]["args"]
            for each in yaml.safe_load_all(text)
            if each["kind"] == "StatefulSet"
        )
        options = [word for word in options if word not in ("--dir", "/data")]
    options[options.index("--aclfile") + 1] = str(folder / "docker" / "secrets" / "redis.acl")
    return options


def server_url(folder: Path, server: ServerHandle) -> str:
    """The URL for the pods' user on a server with these options."""
    settings = load_settings({}, folder / "docker" / "secrets" / "pods.env")
    password = re.fullmatch(r"redis://timers:(\w+)@redis:6379/5", settings.redis_url or "")
    assert password is not None
    return patient(f"{server.url.partition('?')[0]}?db=5&username=timers&password={password[1]}")


@pytest.mark.parametrize("kubernetes", [False, True], ids=["compose", "kubernetes"])
async def test_a_restart_of_the_shipped_server_keeps_every_timer(
    family: Family, kubernetes: bool, tmp_path: Path
) -> None:
    stack(tmp_path, "secrets")
    ids, options = [f"n{i}" for i in range(20)], server_options(tmp_path, kubernetes=kubernetes)
    async with await start_server(family, tmp_path / "server", *options) as server:
        store = await open_store(connect(server_url(tmp_path, server)))
        await declare(store, "log")
        async with client_over(store) as client:
            for each in ids:
                await client.create("log", each, delay="1h")
        await store.connections.close()
    async with (
        await start_server(family, tmp_path / "server", *options) as server,
        TimerClient(server_url(tmp_path, server)) as client,
    ):

        async def loaded() -> bool:
            with suppress(Unavailable):
                return bool((await client.list()).items)
            return False

        await eventually(loaded, "the server has loaded its data")
        assert sorted(timer.id for timer in (await client.list()).items) == sorted(ids)
        assert (await client.stats()).to_json()["by_status"]["scheduled"] == len(ids)


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="no redis-cli (Debian: redis-tools)")
async def test_nobody_can_log_in_to_the_shipped_server_but_its_health_is_seen(tmp_path: Path) -> None:
    stack(tmp_path, "secrets")
    (command,) = compose()["services"]["redis"]["healthcheck"]["test"][1:]
    async with await start_server("redis", tmp_path / "server", *server_options(tmp_path)) as server:
        socket = unquote(urlsplit(server.url).path)
        there = command.replace("redis-cli", f"redis-cli -s {socket}")
        assert shell(there).returncode == 0
        for words in ("ping", "--user health --pass x get timers:meta"):
            assert re.match("NOAUTH|NOPERM", shell(f"redis-cli -s {socket} {words}").stdout)
    assert shell(there).returncode != 0


def test_the_secrets_are_made_with_only_docker_too(tmp_path: Path) -> None:
    """`docker run` stands for the image: it runs the command that is the image's entry point."""
    programs = tmp_path / "bin"
    programs.mkdir()
    run = f'shift 5; export PYTHONPATH={ROOT} TIMERS_REDIS_URL=redis://none; exec {sys.executable} -m timers "$@"'
    (programs / "docker").write_text(f'#!/bin/sh\n[ "$1" != run ] || {{ {run}; }}\n')
    (programs / "docker").chmod(0o755)
    stack(tmp_path, "usage")
    (tmp_path / ".venv").unlink()
    path = f"{programs}:/usr/bin:/bin"
    for forbidden in ("python", "python3", "openssl"):
        (programs / forbidden).write_text(f"#!/bin/sh\necho {forbidden} >>{tmp_path}/used\nexit 1\n")
        (programs / forbidden).chmod(0o755)
    done = stack(tmp_path, "secrets", PATH=path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "used").exists()
    folder = tmp_path / "docker" / "secrets"
    settings = load_settings({}, folder / "pods.env")
    key_id = (folder / "api-key").read_text().split("_")[1]
    assert settings.api_keys is not None
    assert settings.api_keys.get_secret_value().startswith(f"{key_id}:")


def test_without_docker_and_without_setup_the_secrets_say_what_is_missing(tmp_path: Path) -> None:
    stack(tmp_path, "usage")
    (tmp_path / ".venv").unlink()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "docker").chmod(0o755)
    done = stack(tmp_path, "secrets", PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line == (
        "docker/stack secrets: no container engine with compose answers here (docker info); start one, "
        "or run `make setup`, which gives what makes the key"
    )
    assert not (tmp_path / "docker" / "secrets").exists()


async def test_a_pod_with_the_made_secrets_runs_a_timer_on_the_redis_of_the_compose_file(tmp_path: Path) -> None:
    stack(tmp_path, "secrets")
    secrets = tmp_path / "docker" / "secrets"
    server = await start_server("redis", tmp_path / "server", *server_options(tmp_path))
    (tmp_path / "pod").mkdir()
    settings = load_settings({}, secrets / "pods.env")
    assert settings.api_keys is not None
    key_id = (secrets / "api-key").read_text().split("_")[1]
    assert settings.api_keys.get_secret_value().startswith(f"{key_id}:")
    url = server_url(tmp_path, server)
    pod = Process(tmp_path / "pod", "serve", "--roles", "worker", TIMERS_REDIS_URL=url)
    try:
        async with TimerClient(url) as client:

            async def declared() -> str | None:
                assert pod.alive, pod.err
                return await client.owner("log")

            await eventually(declared, "the pod has declared its processors")
            await client.create("log", "a", delay=0)

            async def completed() -> bool:
                return (await client.get("log", "a")).status == "completed"

            await eventually(completed, "the timer has run")
    finally:
        pod.kill()
        await server.stop()


def test_the_users_rights_are_the_documented_ones(tmp_path: Path) -> None:
    stack(tmp_path, "secrets")
    rights = {word for word in documented() if word[0] in "+-&"}
    on_cluster = {word.replace("@5__", "@0__") for word in rights} | set(for_clusters())
    for name, wanted in (("redis.acl", rights), ("redis-cluster.acl", on_cluster)):
        *others, pods = (tmp_path / "docker" / "secrets" / name).read_text().splitlines()
        assert {word for word in pods.split() if word[0] in "+-&"} == wanted
        former = "cluster" if name == "redis-cluster.acl" else "sentinel"
        assert [line.split()[1] for line in others] == ["default", "health", "replication", former]


def test_the_board_and_the_alerts_use_only_existing_metrics() -> None:
    board = json.loads((FOLDER / "grafana" / "boards" / "timers.json").read_text())
    rules = yaml.safe_load((FOLDER / "prometheus" / "rules.yml").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for expression in asked:
        names = used_names(expression)
        assert names <= labels_of_samples().keys(), expression
        assert names or "up{" in expression
        there = {"job", "instance"}.union(*(labels_of_samples()[name] for name in names))
        grouped = {label for some in re.findall(r" by \(([^)]*)\)", expression) for label in re.split(", *", some)}
        assert grouped | set(re.findall(r"(\w+)=~?\"", expression)) <= there, expression


def test_the_board_shows_each_metric() -> None:
    board = json.loads((FOLDER / "grafana" / "boards" / "timers.json").read_text())
    shown = used_names(json.dumps(board["panels"]))
    assert {name for name in documented_metrics() if not any(each.startswith(name) for each in shown)} == set()
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(places) == len(set(places))


def test_queries_use_existing_outcomes_and_statuses() -> None:
    text = (FOLDER / "grafana" / "boards" / "timers.json").read_text().replace('\\"', '"')
    text += (FOLDER / "prometheus" / "rules.yml").read_text()
    told = documented_metrics()["timers_runs_total"]
    asked = {value for values in re.findall(r'outcome=~?"([^"]*)"', text) for value in values.split("|")}
    assert asked
    assert {value for value in asked if f"`{value}`" not in told} == set()
    assert set(re.findall(r'status="([^"]*)"', text)) <= {status.value for status in Status}


def test_every_alert_names_its_section_of_the_runbook() -> None:
    rules = yaml.safe_load((FOLDER / "prometheus" / "rules.yml").read_text())["groups"][0]["rules"]
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert [rule["alert"] for rule in rules] == sections
    for rule in rules:
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert {"expr", "labels"} <= set(rule)


@NEEDS_PROMTOOL
def test_promtool_accepts_configuration_and_rules() -> None:
    words = ["promtool", "check", "config", str(FOLDER / "prometheus" / "prometheus.yml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
