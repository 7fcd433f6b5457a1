"""Requests made from /openapi.json: none of them breaks the server, and what it replies is what it describes.

`WOOLLY_EXAMPLES=200 .venv/bin/pytest tests/serving/test_schema.py` looks longer, and at other requests each time.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from tests.cases.texts import write_readers
from tests.serving.conftest import serving
from woolly.serving import Settings, create_app

schemathesis = pytest.importorskip(
    "schemathesis", reason="schemathesis is not installed; `pip install schemathesis` brings it"
)

from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

_EXAMPLES = int(os.environ.get("WOOLLY_EXAMPLES", "3"))

_DESCRIPTION = create_app(Settings()).openapi()
# A benchmark takes half a minute each.
_SCHEMA = schemathesis.openapi.from_dict(_DESCRIPTION).exclude(path_regex="/performance/benchmark")
_OPERATIONS = {found.ok().label: found.ok() for found in _SCHEMA.get_all_operations()}


def _may_be_wrong(operation):
    """Whether a request may break the description of a route: one that is any texts within a path may not.

    Hypothesis would look at 300 requests of each such route, for two seconds, before it says that there is none.
    """
    method, path = operation.split(" ", 1)
    route = _DESCRIPTION["paths"][path][method.lower()]
    kinds = [{**part["schema"], "in": part["in"]} for part in route.get("parameters", [])]
    for kind in kinds:
        kind.pop("title", None)
    return "requestBody" in route or any(kind != {"type": "string", "in": "path"} for kind in kinds)


_CASES = [
    pytest.param(operation, mode, id=f"{operation}-{mode.value}")
    for operation in _OPERATIONS
    for mode in schemathesis.GenerationMode
    if mode is not schemathesis.GenerationMode.NEGATIVE or _may_be_wrong(operation)
]


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


@pytest.mark.parametrize(("operation", "mode"), _CASES)
def test_every_route_keeps_to_its_description(described, operation, mode):
    @given(case=_OPERATIONS[operation].as_strategy(mode))
    @settings(
        max_examples=_EXAMPLES,
        deadline=None,
        derandomize="WOOLLY_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def replies_as_described(case):
        # What depends on other fields, or on the model, no schema can say: such requests may be refused.
        case.call_and_validate(base_url=described.url, excluded_checks=[positive_data_acceptance], timeout=600)

    try:
        replies_as_described()
    except Unsatisfiable:
        assert mode is schemathesis.GenerationMode.NEGATIVE  # nothing that is sent to this route could be wrong
