"""Templates from a folder: which one is used, what it is filled with, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from timers import Fail
from timers_processors.send_message import Templates, content


def filled(folder: Path, payload: dict[str, Any], prefix: str = "send-message", **found: Any) -> tuple[str, str, Any]:
    return content(payload, found, Templates(folder), prefix)


def test_the_one_that_the_payload_names_is_filled_with_payload_and_user(tmp_path: Path) -> None:
    (tmp_path / "de").mkdir()
    (tmp_path / "de" / "hello.txt").write_text("Hallo {{ name }} aus {{ town }}{% if vip %}!{% endif %}")
    payload = {"template": "de/hello", "name": "old", "town": "Ulm", "vip": True}
    assert filled(tmp_path, payload, name="Ann") == ("Welcome", "Hallo Ann aus Ulm!", None)


def test_the_subject_is_the_payloads_then_the_templates(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    assert filled(tmp_path, {"template": "a"})[0] == "Welcome"
    (tmp_path / "a.subject.txt").write_text("Two\nlines {{ n }}")
    assert filled(tmp_path, {"template": "a", "n": 5})[0] == "Two lines 5"
    assert filled(tmp_path, {"template": "a", "subject": "Mine {n}", "n": 5})[0] == "Mine 5"


def test_one_with_the_name_of_the_prefix_is_used_where_the_payload_has_no_text(tmp_path: Path) -> None:
    (tmp_path / "send-message-x.txt").write_text("from the folder")
    assert filled(tmp_path, {}, "send-message-x")[1] == "from the folder"
    assert filled(tmp_path, {"text": "mine"}, "send-message-x")[1] == "mine"
    assert filled(tmp_path, {}, "send-message-y")[1].startswith("Hello there")


def test_a_template_with_a_name_of_several_parts_failed_for_the_default_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Hello {{ name.first }}")
    name = {"first": "Ann", "last": "Lee"}
    assert filled(tmp_path, {"template": "a"}, name=name) == ("Welcome", "Hello Ann", None)
    assert filled(tmp_path, {"name": name}, "a") == ("Welcome", "Hello Ann", None)


def test_values_are_escaped_in_html_and_are_never_templates(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("{{ name }}")
    (tmp_path / "a.html").write_text("<b>{{ name }}</b>")
    name = "<script>{{ 7 * 7 }}</script>"
    _, text, html = filled(tmp_path, {"template": "a", "name": name})
    assert text == name
    assert html == "<b>&lt;script&gt;{{ 7 * 7 }}&lt;/script&gt;</b>"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ nobody }}", r"'nobody' is undefined"),
        ("{{ name.first }}", r"has no attribute 'first'"),
        ("{% for", r"template a\.txt: "),
        ("{{ name + 5 }}", r"TypeError"),
        ("{{ 1 // 0 }}", r"ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", r"access to attribute '__class__'|is unsafe|undefined"),
        ("{{ things.append(5) }}", r"not safely callable|unsafe"),
        ("{% for n in range(10**9) %}x{% endfor %}", r"OverflowError|range"),
        ("{{ 'x' * 300000 }}", r"longer than 262144 characters"),
        ("{% include 'b.txt' %}", r"b\.txt"),
        ("{% include '../b.txt' %}", r"b\.txt"),
    ],
)
def test_a_text_that_cannot_be_filled_in_fails_at_once_and_is_named(tmp_path: Path, source: str, why: str) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (tmp_path / "b.txt").write_text("secret")
    (folder / "a.txt").write_text(source)
    with pytest.raises(Fail, match=why) as caught:
        filled(folder, {"template": "a", "name": "Ann", "things": []})
    assert str(caught.value).startswith("template a.txt: ")


def test_a_mistake_in_the_one_of_the_prefix_fails_at_once_too(tmp_path: Path) -> None:
    (tmp_path / "send-message.txt").write_text("{% for")
    with pytest.raises(Fail, match=r"^template send-message\.txt: "):
        filled(tmp_path, {})


@pytest.mark.parametrize(
    "name", ["../b", "/etc/passwd", "a b", "", ".hidden", "a//b", 5, None.__class__.__name__ + "/.."]
)
def test_an_impossible_name_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(Fail, match="is not a name of letters"):
        filled(tmp_path, {"template": name})


def test_a_missing_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(Fail, match=r"^template: there is no gone\.txt in TIMERS_TEMPLATES$"):
        filled(tmp_path, {"template": "gone"})


def test_without_a_folder_there_are_none() -> None:
    with pytest.raises(Fail, match=r"^template: TIMERS_TEMPLATES is not set$"):
        content({"template": "a"}, {}, None, "send-message")
