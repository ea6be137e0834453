"""Reads requests to models, a line of JSON each, and prints those that the providers' public documents do not allow."""

import json
import sys
from pathlib import Path

import llm_comply
from jsonschema import Draft202012Validator

SPECS = Path(llm_comply.__file__).parent / "specs"
# of each wire the document, and the schema of a request in it
WIRES = {
    "openai": ("openai_chat.json", "CreateChatCompletionRequest"),
    "openai-responses": ("openresponses.json", "CreateResponseBody"),
    "anthropic": ("anthropic.json", "CreateMessageParams"),
}


def with_null(node: object) -> object:
    """A schema of OpenAPI 3.0 in the words of JSON Schema: what is `nullable` may be null."""
    if isinstance(node, list):
        return [with_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: with_null(value) for key, value in node.items()}
    return {"anyOf": [node, {"type": "null"}]} if node.pop("nullable", None) is True else node


class Document:
    """The requests that one document allows."""

    def __init__(self, file: str, name: str) -> None:
        self.spec = with_null(json.loads((SPECS / file).read_text()))
        self.request = {"$ref": f"#/components/schemas/{name}"}
        self.validator = Draft202012Validator(self.request | {"components": self.spec["components"]})
        self.known = self.fields(self.request)

    def fields(self, schema: dict) -> set[str]:
        """The names of the fields that a schema knows."""
        if "$ref" in schema:
            return self.fields(self.spec["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
        return set(schema.get("properties", {})).union(*map(self.fields, schema.get("allOf", [])))

    def faults(self, body: dict) -> list[str]:
        found = [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in self.validator.iter_errors(body)]
        return found + [f"{field}: the document has no such field" for field in sorted(set(body) - self.known)]


def main() -> None:
    documents = {wire: Document(*where) for wire, where in WIRES.items()}
    for line in sys.stdin:
        request = json.loads(line)
        for fault in documents[request["wire"]].faults(request["body"]):
            print(f"{request['title']}: {fault[:600]}")


main()
