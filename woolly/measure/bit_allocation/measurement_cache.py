"""Cache file of measurements, for another run or another size. It is stored next to the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from woolly.errors import RequestError
from woolly.measure.bit_allocation.groups import Types
from woolly.measure.bit_allocation.kl_meter import Loss


class Records:
    """Losses for one model, text and method, keyed by the tensor types that were changed."""

    def __init__(self, path: Path, of: Mapping[str, object]) -> None:
        """Open the cache file. `of` identifies model, text and settings; a file with other values is rejected."""
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
            raise RequestError(f"{path} is not a file of measurements; remove it or choose another file") from None
        if found != json.loads(json.dumps(self._of)):
            raise RequestError(
                f"{path} has measurements of another model, text, setting or version of Woolly; remove it or choose"
                " another file"
            )

    def get(self, part: str, types: Types) -> Loss | None:
        """Return the recorded loss on a part of the text with these types, or None."""
        found = self._losses.get(_key(part, types))
        return None if found is None else Loss(*found)

    def put(self, part: str, types: Types, loss: Loss) -> None:
        """Record a loss and append it to the file. A killed run only loses the measurement in progress."""
        self._losses[_key(part, types)] = [loss.kl, loss.same_top]
        partial = self.path.with_name(self.path.name + ".part")
        partial.write_text(json.dumps({"of": self._of, "losses": self._losses}))
        partial.replace(self.path)


def _key(part: str, types: Types) -> str:
    listed = ",".join(f"{name}={int(type)}" for name, type in sorted(types.items()))
    return f"{part} {hashlib.sha256(listed.encode()).hexdigest()[:24]}"
