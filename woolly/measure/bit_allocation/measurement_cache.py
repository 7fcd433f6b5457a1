"""Cache of measurements in a file next to the result, for a second run or another size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from woolly.errors import RequestError
from woolly.measure.bit_allocation.groups import Types
from woolly.measure.bit_allocation.kl_meter import Loss


class Records:
    """Losses by changed types, for one model, text and method."""

    def __init__(self, path: Path, of: Mapping[str, object]) -> None:
        """`of` identifies the model, the text and the settings: a file of other ones is rejected."""
        self.path = path
        self._of = dict(of)
        self._losses: dict[str, list[float]] = {}
        if not path.exists():
            return
        try:
            data = json.loads(path.read_text())
            found, losses = data["of"], data["losses"]
            self._losses = {str(key): [float(kl), float(top)] for key, (kl, top) in losses.items()}
        except (ValueError, KeyError, TypeError, OSError):
            raise RequestError(f"{path} is not a file of measurements: remove it, or name another") from None
        if found != json.loads(json.dumps(self._of)):
            raise RequestError(
                f"{path} has measurements of another model, text or setting, or of another Woolly: remove it, or name"
                " another"
            )

    def get(self, part: str, types: Types) -> Loss | None:
        """Return the measurement on a part of the text with these types, None if there is none."""
        found = self._losses.get(_key(part, types))
        return None if found is None else Loss(*found)

    def put(self, part: str, types: Types, loss: Loss) -> None:
        """Add a measurement, also on disk; a killed run loses at most the one in progress."""
        self._losses[_key(part, types)] = [loss.kl, loss.same_top]
        partial = self.path.with_name(self.path.name + ".part")
        partial.write_text(json.dumps({"of": self._of, "losses": self._losses}))
        partial.replace(self.path)


def _key(part: str, types: Types) -> str:
    listed = ",".join(f"{name}={int(type)}" for name, type in sorted(types.items()))
    return f"{part} {hashlib.sha256(listed.encode()).hexdigest()[:24]}"
