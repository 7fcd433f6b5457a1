"""What a model that runs in stages cannot do is refused by name."""

from __future__ import annotations

import os
from collections.abc import Sequence

from woolly.errors import RequestError
from woolly.runtime import Stages

__all__ = ["parse_stages"]


def parse_stages(
    names: Sequence[str] | None, token_file: str | os.PathLike[str] | None, **given: object
) -> Stages | None:
    """Returns where the stages are, None without any. `given` are arguments of LLM that must be empty with stages."""
    if not names:
        return None
    for name, value in given.items():
        if value:
            raise RequestError(
                f"{name} is given with stages, which do not have it: leave one of them out",
                field=name,
                names=(name, "stages"),
            )
    return Stages.parse(names, token_file)
