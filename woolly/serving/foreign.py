"""Flags of llama-server that are no settings here: each is what is done anyway, or is refused with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from woolly.errors import RequestError

__all__ = ["FOREIGN", "ForeignFlag"]

_NO_GPU = "there is no GPU backend"
_NO_TLS = "there is no TLS here, for which a reverse proxy stands before the server"
_MAPPED = "model files are always mapped into memory"
_DOWNLOAD = "the server downloads nothing, but --model takes a file, or a name after `woolly pull`"


@dataclass(frozen=True)
class ForeignFlag:
    """A flag that people bring along. One that takes a value is `flags`, a switch `--on/--off` as typer writes it."""

    flags: str
    reason: str
    takes_value: bool = True
    is_fine: Callable[[str], bool] = lambda _: False  # whether a value asks for what is done anyway

    @property
    def name(self) -> str:
        """As a parameter of the command."""
        return "foreign_" + self.flags.split("/")[0].split()[-1].lstrip("-").replace("-", "_")

    def check(self, value: str) -> None:
        """RequestError for a value that asks for something else; `value` of a switch is on or off."""
        if self.is_fine(value):
            return
        yes, _, no = self.flags.partition("/")
        names = "/".join((no if value == "off" and no else yes).split())
        told = f"{names} {value}" if self.takes_value else names
        raise RequestError(f"{told}: {self.reason}; leave it out")


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value.lower() in values


_ON = _one_of("on")

FOREIGN = (
    ForeignFlag("-ngl --gpu-layers --n-gpu-layers", _NO_GPU, is_fine=_one_of("0", "auto")),
    ForeignFlag("-ngld --gpu-layers-draft --n-gpu-layers-draft", _NO_GPU, is_fine=_one_of("0", "auto")),
    ForeignFlag("-dev --device", _NO_GPU, is_fine=_one_of("none")),
    ForeignFlag("-sm --split-mode", _NO_GPU, is_fine=_one_of("none")),
    ForeignFlag("-ts --tensor-split", _NO_GPU),
    ForeignFlag("-mg --main-gpu", _NO_GPU),
    ForeignFlag("-ot --override-tensor", _NO_GPU),
    ForeignFlag("-kvo --kv-offload/-nkvo --no-kv-offload", _NO_GPU, False, _one_of("off")),
    ForeignFlag("-cmoe --cpu-moe", "", False, _ON),
    ForeignFlag(
        "-fa --flash-attn",
        "attention is always computed block by block, and only on or auto can be said",
        is_fine=_one_of("on", "auto", "1", "true", "enabled"),
    ),
    ForeignFlag("-cb --cont-batching/-nocb --no-cont-batching", "requests always share steps", False, _ON),
    ForeignFlag("-kvu --kv-unified/-no-kvu --no-kv-unified", "all requests share one cache", False, _ON),
    ForeignFlag("--repack/-nr --no-repack", "weights are always packed for the kernels", False, _ON),
    ForeignFlag("--mmap/--no-mmap", _MAPPED, False, _ON),
    ForeignFlag("--mlock", f"{_MAPPED} and not locked there", False),
    ForeignFlag("-lm --load-mode", _MAPPED, is_fine=_one_of("auto", "mmap")),
    ForeignFlag("--numa", "threads are not placed by NUMA node, for which there is numactl"),
    ForeignFlag("-tb --threads-batch", "prompts and answers are computed by the same threads, which --threads counts"),
    ForeignFlag("--jinja/--no-jinja", "chat templates are always rendered by Jinja", False, _ON),
    ForeignFlag("--warmup/--no-warmup", "a model is ready without a first run", False, _one_of("off")),
    ForeignFlag("--lora", "adapters are not supported, but a model into which one was merged is"),
    ForeignFlag("-mm --mmproj", "images are not supported"),
    ForeignFlag("--embedding --embeddings", "embeddings are not supported", False),
    ForeignFlag("--rerank --reranking", "reranking is not supported", False),
    ForeignFlag("-hf --hf-repo", _DOWNLOAD),
    ForeignFlag("-mu --model-url", _DOWNLOAD),
    ForeignFlag("--ssl-key-file", _NO_TLS),
    ForeignFlag("--ssl-cert-file", _NO_TLS),
    ForeignFlag("-v --verbose", "more is told with --log-level debug", False),
)
