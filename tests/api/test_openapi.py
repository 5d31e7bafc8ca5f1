"""The OpenAPI document: valid, complete, and consistent with the application, the models and the reference."""

import re
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import pytest
from openapi_spec_validator import validate

from tests.api.conformance import called, check
from tests.api.harness import Api
from timers.access import Right
from timers.api.answer import PROBLEMS, TYPE_ROOT
from timers.api.openapi import document
from timers.api.operations import OPERATIONS
from timers.core.shapes import Durability
from timers.core.spec import NewTimer
from timers.dashboard import PAGES

HEADING = "| type | status | when |"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"


def calls() -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, call) for path, methods in document()["paths"].items() for method, call in methods.items()]


async def test_the_document_is_valid_and_served_as_it_is(api: Api) -> None:
    reply = await api.call("GET", "/openapi.json")
    assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
    assert reply.body == document()
    assert reply.body["openapi"] == "3.1.0"
    validate(reply.body)


async def test_every_route_is_in_the_document_and_every_call_of_it_has_a_route(api: Api) -> None:
    routes = {(route.method, route.resource.canonical) for route in api.app.router.routes() if route.resource}
    documented = {(method.upper(), path) for path, method, _ in calls()}
    pages = {(page.method, page.path) for page in PAGES}
    assert {route for route in routes if route[0] != "HEAD"} == documented | pages
    assert documented == {(operation.method, operation.path) for operation in OPERATIONS}


@pytest.mark.parametrize("path", [each.path for each in OPERATIONS if each.method == "GET" and "{" not in each.path])
async def test_a_misspelt_parameter_is_ignored_or_refused_as_the_document_says(api: Api, path: str) -> None:
    """`/docs` and `/openapi.json` refused it without saying so in the document."""
    assert (await api.call("GET", f"{path}?misspelt=1")).status in (200, 422)


def test_words_that_do_not_explain_themselves_are_explained() -> None:
    parts = document()["components"]["schemas"]
    new = parts["NewTimer"]["properties"]
    for words, said in (
        (parts["Delivery"]["enum"], parts["Delivery"]["description"]),
        (parts["RedisState"]["enum"], parts["RedisState"]["description"]),
        (parts["MissedPolicy"]["enum"], parts["Missed"]["description"]),
        (get_args(Durability), new["durability"]["description"]),
        (new["if_exists"]["enum"], new["if_exists"]["description"]),
        (["unhandled"], parts["Status"]["description"]),
    ):
        assert [word for word in words if f"`{word}`" not in said] == []


def test_no_two_calls_share_a_name() -> None:
    assert len({operation.id for operation in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize(("path", "method", "call"), calls(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_operation_has_a_summary_described_parameters_and_all_its_answers(
    path: str, method: str, call: dict[str, Any]
) -> None:
    assert call["summary"]
    assert {given["name"] for given in call["parameters"] if given["in"] == "path"} == set(re.findall(r"{(\w+)}", path))
    assert all(given["description"] and "example" in given for given in call["parameters"])
    assert any(status.startswith("2") for status in call["responses"])
    for status, answer in call["responses"].items():
        assert answer["description"]
        if int(status) >= 400:
            told = answer["content"]["application/problem+json"]
            validator = jsonschema_rs.validator_for({**told["schema"], "components": document()["components"]})
            assert told["examples"]
            for example in told["examples"].values():
                validator.validate(example["value"])
    if path.startswith("/v1/"):
        assert call["security"]
        assert any(f"`{right}`" in call["description"] for right in get_args(Right))
        assert {"400", "422", "500", "503"} <= set(call["responses"])
        assert "Retry-After" in call["responses"]["503"]["headers"]


@pytest.mark.parametrize(("path", "method", "call"), calls(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_json_that_goes_in_or_comes_out_has_an_example(path: str, method: str, call: dict[str, Any]) -> None:
    bodies = [call.get("requestBody", {}), *(answer for code, answer in call["responses"].items() if int(code) < 400)]
    for media_type, told in ((name, told) for body in bodies for name, told in body.get("content", {}).items()):
        if media_type.endswith("json") and not media_type.endswith("ndjson"):
            schema = {**told["schema"], "components": document()["components"]}
            jsonschema_rs.validator_for(schema).validate(told["example"])


def test_a_signature_allows_what_it_covers_and_reads() -> None:
    signed = {call["operationId"] for _, _, call in calls() if any("signature" in way for way in call["security"])}
    covered = {operation.id for operation in OPERATIONS if operation.body or operation.method == "GET"}
    assert signed == {operation.id for operation in OPERATIONS if operation.right} & covered


def test_every_example_of_a_new_timer_is_taken() -> None:
    properties = document()["components"]["schemas"]["NewTimer"]["properties"]
    for name, schema in properties.items():
        examples = [example for part in (schema, *schema.get("anyOf", ())) for example in part.get("examples", ())]
        for example in examples:
            due = {} if name in ("delay", "due_at") else {"delay": "1h"}
            NewTimer.parse({"prefix": "test", **due, name: example})


def test_every_example_of_a_model_is_one() -> None:
    components = document()["components"]
    shown = [name for name, schema in components["schemas"].items() if "examples" in schema]
    assert {"NewTimer", "PutTimer", "TimerChange", "Batch", "BulkAction"} <= set(shown)
    for name in shown:
        validator = jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": components})
        for example in components["schemas"][name]["examples"]:
            validator.validate(example)


def test_the_document_and_the_code_know_the_same_problems() -> None:
    assert all(kind.when and kind.detail for kind in PROBLEMS.values())
    documented = {
        kind
        for _, _, call in calls()
        for status, answer in call["responses"].items()
        if int(status) >= 400
        for kind in answer["content"]["application/problem+json"]["examples"]
    }
    unbound = {"method-not-allowed", "expectation-failed", "refused"}
    """What is answered outside of documented calls, or by no call of today."""
    assert documented >= PROBLEMS.keys() - unbound


def test_the_reference_lists_every_type_of_problem() -> None:
    lines = REFERENCE.read_text("utf-8").splitlines()
    start = lines.index(HEADING) + 2
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:] if line.startswith("|")]
    listed = {row[0].strip("`"): int(row[1]) for row in rows[: len(PROBLEMS)]}
    assert listed == {slug: kind.status for slug, kind in PROBLEMS.items()}
    assert f"`{TYPE_ROOT}" in REFERENCE.read_text("utf-8")


def test_the_check_of_answers_can_fail() -> None:
    headers = {"Content-Type": "application/json", "ETag": '"1"', "Location": "/v1/timers/test/one"}
    with pytest.raises(AssertionError, match="prefix"):
        check("POST", "/v1/timers", 201, headers, {"id": "one"})
    with pytest.raises(AssertionError, match="the document has"):
        check("POST", "/v1/timers", 204, headers, {})
    with pytest.raises(AssertionError, match="without ETag"):
        check("GET", "/v1/timers/test/one", 200, {"Content-Type": "application/json"}, {})
    with pytest.raises(AssertionError, match="as text/plain"):
        check("GET", "/healthz", 200, {"Content-Type": "text/plain"}, {"status": "ok"})
    with pytest.raises(AssertionError, match="not in the document"):
        check("GET", "/nowhere", 200, headers, {})


def test_fixed_addresses_come_before_those_with_a_place_to_fill() -> None:
    batch = called("POST", "/v1/timers/batch")
    assert batch is not None
    assert batch["operationId"] == "createTimers"
