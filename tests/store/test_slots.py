"""Every script stays within the hash slot of its key: the cluster-enabled node refuses a second slot."""

import re
from pathlib import Path

import pytest

import timers.store
from tests.conftest import SharedServers
from tests.store.backends import real_connections
from timers.store import scripts

FOLDER = Path(timers.store.__file__).parent / "lua"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.lua") if path.stem != "common")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_flags_and_touches_one_slot(name: str) -> None:
    flags = scripts.source(name).partition("\n")[0]
    assert re.fullmatch(r"#!lua( flags=(allow-oom|no-writes))?", flags)


@pytest.mark.parametrize("name", [*SCRIPTS, "common"])
def test_a_script_names_no_key_that_is_not_built_from_its_root(name: str) -> None:
    code = re.sub(r"--[^\n]*", "", (FOLDER / f"{name}.lua").read_text())
    assert not re.search(r"['\"]timers:[^'\"]", code)
    assert not re.search(r"call\('\w+', '", code)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_calls_the_server_only_through_the_common_part(name: str) -> None:
    assert "redis.call" not in (FOLDER / f"{name}.lua").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_carries_the_common_definitions_that_it_uses_and_no_others(name: str) -> None:
    common, source = (FOLDER / "common.lua").read_text(), scripts.source(name)
    code = re.sub(r"--[^\n]*|'[^']*'", "", source)
    for defined in re.findall(r"^local (?:function )?(\w+)", common, re.MULTILINE):
        places = [match.start() for match in re.finditer(rf"\b{defined}\b", code)]
        first = re.search(rf"^local (?:function )?{defined}\b", code, re.MULTILINE)
        assert not places or (first and places[0] > first.start()), defined
        assert len(places) != 1, f"{defined} is carried and not used"


async def test_the_node_refuses_a_script_that_leaves_its_slot(servers: SharedServers) -> None:
    source = "#!lua\nredis.call('SET', KEYS[1], 1); return redis.call('SET', 'timers:{1}:x', 1)"
    async with real_connections(servers, "cluster") as connections:
        with pytest.raises(Exception, match="same slot"):
            await connections.commands.eval(source, 1, "timers:{0}:x")
