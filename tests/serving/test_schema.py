"""Requests made from /openapi.json: none of them breaks the server, and what it replies is what it describes.

`WOOLLY_EXAMPLES=200 .venv/bin/pytest tests/serving/test_schema.py` looks longer, and at other requests each time.
"""

import importlib
import importlib.util
import itertools
import os
import traceback

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from tests.cases.later import Later
from tests.cases.texts import write_readers
from tests.serving.conftest import serving
from woolly.serving import Settings, create_app

# Imported, and given the description, by the process that runs these tests: both together take three seconds.
schemathesis = Later("schemathesis")

_EXAMPLES = int(os.environ.get("WOOLLY_EXAMPLES", "3"))
_PARTS = 16  # of the routes, each a test: their names are part of the description


class Description:
    """Parsed /openapi.json of the server."""

    def __init__(self):
        self.text = create_app(Settings()).openapi()
        # A benchmark takes half a minute each, and the events of models have no end.
        schema = schemathesis.openapi.from_dict(self.text).exclude(path_regex="/performance/benchmark|/models/sse")
        found = schema.get_all_operations()
        self.operations = {one.ok().label: one.ok() for one in found}

    def may_be_wrong(self, operation):
        """True if a request may violate the description of a route; not if its only inputs are texts in the path.

        Hypothesis would look at 300 requests of each such route, for two seconds, before it says that there is none.
        """
        method, path = operation.split(" ", 1)
        route = self.text["paths"][path][method.lower()]
        kinds = [{**part["schema"], "in": part["in"]} for part in route.get("parameters", [])]
        for kind in kinds:
            kind.pop("title", None)
        return "requestBody" in route or any(kind != {"type": "string", "in": "path"} for kind in kinds)


@pytest.fixture(scope="module")
def description():
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed; `pip install schemathesis` brings it")
    return Description()


@pytest.fixture(scope="module")
def described(tiny_model, tmp_path_factory):
    """A server over tiny models, whose answers are short because their context is."""
    folder = tmp_path_factory.mktemp("described")
    models = write_readers(tmp_path_factory.mktemp("models"), "embedder", "ranker", "classifier")
    flags = ("--models-dir", str(models), "-t", "1", "--max-sessions", "100000", "--timeout", "600", "--props")
    flags += ("--keep-requests", "10", "--usage-file", str(folder / "usage.db"))
    with serving(tiny_model, folder, *flags, ctx=128) as server:
        yield server
        assert server.process.poll() is None
        assert "request failed" not in server.log.read_text()


def reported(error):
    """Lines of an exception, or of each member of a group."""
    parts = getattr(error, "exceptions", ())
    return [line for part in parts for line in reported(part)] or ["".join(traceback.format_exception_only(error))]


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_route_matches_its_openapi_description(described, description, part):
    acceptance = importlib.import_module("schemathesis.specs.openapi.checks").positive_data_acceptance
    # BaseExceptionGroup, which Python has from 3.11 on: schemathesis and Hypothesis raise one for several failures.
    group = importlib.import_module("schemathesis.core.failures").FailureGroup.__base__
    operations = list(description.operations)[part::_PARTS]
    assert operations
    failures = []  # one hides no other
    for operation, mode in itertools.product(operations, schemathesis.GenerationMode):
        is_wrong = mode is schemathesis.GenerationMode.NEGATIVE
        if is_wrong and not description.may_be_wrong(operation):
            continue

        @given(case=description.operations[operation].as_strategy(mode))
        @settings(
            max_examples=_EXAMPLES,
            deadline=None,
            derandomize="WOOLLY_EXAMPLES" not in os.environ,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        def replies_as_described(case):
            # What depends on other fields, or on the model, no schema can say: such requests may be refused.
            case.call_and_validate(base_url=described.url, excluded_checks=[acceptance], timeout=600)

        try:
            replies_as_described()
        except Unsatisfiable:
            if not is_wrong:  # nothing that is sent to this route could be wrong
                failures.append(f"{operation}: no request keeps to its description")
        except (Exception, group) as error:
            failures += (f"{operation}, {mode.value}: {one}" for one in reported(error))
    assert not failures, "\n\n".join(failures)
