"""Compares the grammars of the JSON-Schema-Test-Suite's schemas with its instances, and prints a table."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_specifications

from tests.cases.grammars import TOKEN_OF_BYTE, accepts, byte_tokenizer
from woolly.errors import RequestError
from woolly.grammar import Grammar, GrammarCompiler

DRAFTS = {"draft2020-12": None, "draft7": "http://json-schema.org/draft-07/schema#"}
REMOTES = "http://localhost:1234/"
MAX_ORDERS = 100


@dataclass
class Row:
    """Counts of one file of the suite."""

    schemas: int = 0
    compiled: int = 0
    accepted: int = 0  # invalid instances
    rejected: int = 0  # valid instances
    right: int = 0  # schemas of which all instances are decided rightly

    def add(self, other: Row) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def main() -> int:
    """Return 1 if a grammar accepts an invalid instance."""
    parser = argparse.ArgumentParser(prog="scripts/json-schema-tests", description=__doc__)
    parser.add_argument("suite", type=Path, help="checkout of json-schema-org/JSON-Schema-Test-Suite")
    parser.add_argument("-k", default="", help="only files with this text in their name")
    parser.add_argument("-v", action="store_true", help="print each wrong instance and each rejected schema")
    given = parser.parse_args()
    if not (given.suite / "tests" / "draft2020-12").is_dir():
        parser.error(f"{given.suite} has no tests of draft 2020-12")
    documents = dict(_documents(given.suite / "remotes"))
    compiler = GrammarCompiler(byte_tokenizer())
    rows: dict[str, Row] = {}
    reasons: Counter[str] = Counter()
    for draft, address in DRAFTS.items():
        folder = given.suite / "tests" / draft
        for path in [*sorted(folder.glob("*.json")), *sorted(folder.glob("optional/format/*.json"))]:
            name = f"format/{path.stem}" if path.parent.name == "format" else path.stem
            if given.k not in name:
                continue
            row = rows.setdefault(name, Row())
            for group in json.loads(path.read_text()):
                row.add(_compare(compiler, group, address, documents, reasons, f"{draft}/{name}" if given.v else ""))
    print(f"{'file':32}schemas compiled accepted rejected right")
    rows["all but formats"] = _sum(row for name, row in rows.items() if not name.startswith("format"))
    rows["all"] = _sum(row for name, row in rows.items() if name != "all but formats")
    for name, row in rows.items():
        print(f"{name:32}{row.schemas:7}{row.compiled:9}{row.accepted:9}{row.rejected:9}{row.right:6}")
    for reason, n in reasons.most_common() if given.v else ():
        print(f"{n:4} {reason}")
    return int(rows["all"].accepted > 0)


def _sum(rows: Iterator[Row]) -> Row:
    total = Row()
    for row in list(rows):
        total.add(row)
    return total


def _documents(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.rglob("*.json")):
        place = path.relative_to(folder).as_posix()
        if not place.startswith("draft") or place.startswith(tuple(DRAFTS)):
            yield REMOTES + place, json.loads(path.read_text())
    for address in jsonschema_specifications.REGISTRY:
        yield address, jsonschema_specifications.REGISTRY.contents(address)


def _compare(
    compiler: GrammarCompiler,
    group: dict[str, Any],
    draft: str | None,
    documents: dict[str, Any],
    reasons: Counter[str],
    where: str,
) -> Row:
    schema = group["schema"]
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if draft and "$schema" not in schema:
        schema = {"$schema": draft, **schema}
    row = Row(schemas=1)
    if any(reference in json.dumps(schema) for reference in ("http:", "https:", "urn:", ".json")):
        schema = {**schema, "x-documents": documents}
    try:
        grammar = compiler.compile("json_schema", json.dumps(schema))
    except RequestError as error:
        reasons[str(error)] += 1
        # A schema that no value satisfies has no grammar.
        row.right = int("no value satisfies" in str(error) and not any(test["valid"] for test in group["tests"]))
        row.compiled = row.right
        return row
    row.compiled = 1
    for test in group["tests"]:
        is_taken = takes(grammar, test["data"])
        row.accepted += is_taken and not test["valid"]
        row.rejected += test["valid"] and not is_taken
        if where and is_taken != test["valid"]:
            print(f"{'accepted' if is_taken else 'rejected'}: {where}: {group['description']}: {test['description']}")
    row.right = int(not row.accepted and not row.rejected)
    return row


def takes(grammar: Grammar, value: Any) -> bool:
    """Return True if a grammar accepts a value as compact JSON, with the names of objects in any order."""
    for ordered in itertools.islice(_orders(value), MAX_ORDERS):
        matcher = grammar.start()._matcher
        text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
        try:
            tokens = [TOKEN_OF_BYTE[byte] for byte in text.encode()]
        except UnicodeEncodeError:
            continue  # a lone surrogate
        if matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting():
            # Not the matcher, but the constraint compares unique items.
            return not grammar.has_unique_items or accepts(grammar.start(), text.encode())
    return False


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for names in itertools.islice(itertools.permutations(value), MAX_ORDERS):
            inner = (list(itertools.islice(_orders(value[name]), 6)) for name in names)
            for values in itertools.islice(itertools.product(*inner), MAX_ORDERS):
                yield dict(zip(names, values, strict=True))
    elif isinstance(value, list):
        inner = (list(itertools.islice(_orders(item), 6)) for item in value)
        yield from map(list, itertools.islice(itertools.product(*inner), MAX_ORDERS))
    else:
        yield value


if __name__ == "__main__":
    sys.exit(main())
