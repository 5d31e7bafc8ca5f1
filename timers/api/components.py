"""Owns the schemas of the OpenAPI document, made from the types of requests and answers, and the examples made from
them.

Some valid schemas confuse generators of clients: a default makes a field required, a title becomes a type's name, and
an inline schema gets a number as its name. So the document says the same without them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import TypeAdapter

Json = dict[str, Any]

_ROOT: Final = "#/components/schemas/"
_AS_IT_IS: Final = ("enum", "examples", "required", "x-rules")
_SAMPLES: Final[Mapping[str, Any]] = {"integer": 1, "number": 1, "boolean": False, "string": "text"}


class Components:
    """Schemas by name; `of_fields` may add to them."""

    def __init__(self, types: Iterable[Any]) -> None:
        self.schemas: dict[str, Json] = {}
        adapters = {each.__name__: TypeAdapter[Any](each) for each in types}
        _, made = TypeAdapter.json_schemas(
            [(name, "validation", adapters[name]) for name in sorted(adapters)], ref_template=_ROOT + "{model}"
        )
        for name, schema in made["$defs"].items():
            self.schemas[name] = self._plain(schema)

    def of_fields(self, model: Any) -> Mapping[str, Json]:
        """The schemas of a model's fields."""
        return {
            name: self._plain(schema) for name, schema in TypeAdapter(model).json_schema().get("properties", {}).items()
        }

    def _plain(self, schema: Json) -> Json:
        """The schema without titles and defaults, and with references to named schemas."""
        plain = {name: self._part(name, part) for name, part in schema.items() if not _is_title(name, part)}
        name, default = plain.pop("x-name", None), plain.pop("default", None)
        if "x-ref" in plain:
            plain = reference(plain["x-ref"])
        elif name is not None:
            self.schemas[name] = plain
            plain = reference(name)
        if default not in (None, [], {}):
            shown = str(default).lower() if isinstance(default, bool) else default
            plain["description"] = "; ".join([*filter(None, [plain.get("description")]), f"`{shown}` by default"])
        return plain

    def _part(self, name: str, part: Any) -> Any:
        if name in _AS_IT_IS:
            return part
        if name == "properties":
            return {inner: self._plain(schema) for inner, schema in part.items()}
        if isinstance(part, list):
            return [self._plain(each) if isinstance(each, dict) else each for each in part]
        return self._plain(part) if isinstance(part, dict) else part

    def resolved(self, schema: Json) -> Json:
        """The schema behind a reference; any other schema unchanged."""
        return {**self.schemas[schema["$ref"].removeprefix(_ROOT)], **schema} if "$ref" in schema else schema

    def example(self, schema: Json) -> Any:
        """An example value for a schema: the schema's first example, or a value made from the examples of its parts."""
        schema = self.resolved(schema)
        if "examples" in schema:
            return schema["examples"][0]
        if "anyOf" in schema:
            may_be_null = {"type": "null"} in schema["anyOf"]
            return None if may_be_null and "examples" not in schema["anyOf"][0] else self.example(schema["anyOf"][0])
        if "enum" in schema:
            return schema["enum"][0]
        if schema.get("type") == "object":
            return {name: self.example(part) for name, part in schema.get("properties", {}).items()}
        if schema.get("type") == "array":
            return [self.example(schema["items"])]
        return _SAMPLES[schema["type"]]


def reference(name: str) -> Json:
    """A reference to the schema with that name."""
    return {"$ref": _ROOT + name}


def _is_title(name: str, part: Any) -> bool:
    return name == "title" and isinstance(part, str)
