"""No test of this room asks how long a mask takes: a machine that pauses for a moment must not fail one."""

import math

import pytest


@pytest.fixture(autouse=True, scope="module")
def all_the_time():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("woolly.grammar.constraint.SECONDS_AHEAD", math.inf)
        yield
