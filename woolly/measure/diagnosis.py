"""Diagnosis: how close a model is to the limits of its machine, and the most useful change.

All inputs are measurements (profiler.py), so advice can be tested without a machine. A part of a run is bound by memory
or by arithmetic, whichever takes longer. The gain of a change is estimated by scaling: a part that takes 1.3 times its
limit is expected to take 1.3 times the limit after the change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["busy", "threads", "kernels", "quantization", "memory", "kv_type", "context", "batch", "nothing"]

# Smaller gains are not worth the effort and may be noise.
WORTHWHILE = 1.1
# Length of an answer relative to the prompt: 128 tokens after 512.
_ANSWER = 0.25


@dataclass(frozen=True)
class Limits:
    """Minimum time of a part."""

    memory: float  # seconds to read its bytes at the machine's bandwidth
    arithmetic: float  # seconds to compute with weights in the CPU cache

    @property
    def seconds(self) -> float:
        """Maximum of both, because memory access and arithmetic overlap."""
        return max(self.memory, self.arithmetic)

    @property
    def bound(self) -> Literal["memory", "arithmetic", ""]:
        """Memory or arithmetic, whichever takes longer; empty if there is no limit."""
        if self.seconds <= 0:
            return ""
        return "memory" if self.memory >= self.arithmetic else "arithmetic"


@dataclass(frozen=True)
class StepGroup:
    """All steps of one kind in a run."""

    name: str
    seconds: float
    limits: Limits
    n_bytes: int = 0
    macs: int = 0
    after: Mapping[str, Limits] = field(default_factory=dict)  # kind of change to limits after it

    @property
    def reached(self) -> float:
        """Share of the limit that was reached; 0 if no time was measured."""
        return self.limits.seconds / self.seconds if self.seconds > 0 else 0.0

    def seconds_after(self, change: str) -> float:
        """Return the expected seconds after a change."""
        if change not in self.after or self.limits.seconds <= 0:
            return self.seconds
        return self.seconds * self.after[change].seconds / self.limits.seconds


@dataclass(frozen=True)
class Run:
    """Run of a prompt, or of one token per sequence."""

    name: str
    n_tokens: int
    parts: tuple[StepGroup, ...]

    @property
    def seconds(self) -> float:
        """Seconds of all parts."""
        return sum(part.seconds for part in self.parts)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.n_tokens / self.seconds

    @property
    def limit(self) -> float:
        """Seconds if every part reaches its limit."""
        return sum(part.limits.seconds for part in self.parts)

    @property
    def best_rate(self) -> float:
        """Tokens per second if every part reaches its limit."""
        return self.n_tokens / self.limit if self.limit > 0 else float("inf")

    @property
    def bound(self) -> str:
        """ "memory" or "arithmetic", by the larger share of the limit."""
        by_memory = sum(part.limits.seconds for part in self.parts if part.limits.bound == "memory")
        return "memory" if 2 * by_memory >= self.limit else "arithmetic"

    def part(self, name: str) -> StepGroup | None:
        """Return the part with this name, or None."""
        return next((part for part in self.parts if part.name == name), None)

    def seconds_after(self, change: str) -> float:
        """Return the expected seconds after a change."""
        return sum(part.seconds_after(change) for part in self.parts)


@dataclass(frozen=True)
class Situation:
    """Measurements of a model on a machine."""

    prompt: Run
    one: Run  # one token of one sequence
    several: Run  # one token per sequence
    threads: int
    cores: int
    cores_seconds: tuple[float, float] | None  # seconds of prompt and token with `cores` threads; None: not measured
    level: str
    best_level: str
    bits: float  # bits per weight
    target_bits: float  # bits per weight of the smaller quantization
    target_type: str
    kv_type: str
    kv_seconds: Mapping[str, float]  # seconds of attention for one token, by cache type; empty: not measured
    depth: int  # cached tokens
    weight_bytes: int  # size of all weights
    kept_bytes: int  # size of prepared (packed) weights
    packing_seconds: float  # seconds per token to pack weights that are not cached
    available_bytes: int  # available memory with the model loaded
    busy: float  # share of CPU time used by other programs
    disk_bytes: float  # disk reads per token
    used_share: float = 1.0  # share of weight bytes that one token reads; below 1 for MoE

    @property
    def token_bytes(self) -> float:
        """Bytes of weights read per token."""
        return self.weight_bytes * self.used_share


@dataclass(frozen=True)
class Advice:
    """Change and its expected gain."""

    kind: Kind
    gain: float  # gain of a complete request; for `batch`: of the total tokens per second
    do: str  # instruction
    why: str  # calculation
    prompt_gain: float = 1.0
    token_gain: float = 1.0


def advise(situation: Situation) -> Advice:
    """Return the change with the largest gain."""
    best = candidates(situation)
    if best and best[0].gain >= WORTHWHILE:
        return best[0]
    return _batch(situation) or _nothing(situation)


def candidates(situation: Situation) -> list[Advice]:
    """Return every change that would make a request faster, largest gain first."""
    makers = (_busy, _threads, _kernels, _quantization, _memory, _kv_type, _context)
    found = [advice for make in makers if (advice := make(situation)) is not None and advice.gain > 1.0]
    return sorted(found, key=lambda advice: advice.gain, reverse=True)


def _changed(s: Situation, kind: Kind, prompt: float, token: float, do: str, why: str) -> Advice:
    """Return a change, given the seconds of prompt and token after it."""
    n = s.prompt.n_tokens * _ANSWER
    gain = (s.prompt.seconds + n * s.one.seconds) / max(prompt + n * token, 1e-12)
    return Advice(kind, gain, do, why, s.prompt.seconds / max(prompt, 1e-12), s.one.seconds / max(token, 1e-12))


def _by_limits(s: Situation, kind: Kind, do: str, why: str) -> Advice:
    return _changed(s, kind, s.prompt.seconds_after(kind), s.one.seconds_after(kind), do, why)


def _busy(s: Situation) -> Advice | None:
    if s.busy < 0.05:
        return None
    left = 1 - s.busy
    return _changed(
        s,
        "busy",
        s.prompt.seconds * left,
        s.one.seconds * left,
        "stop other programs on this machine",
        f"other programs took {s.busy:.0%} of the time of {_threads_text(s.threads)}, so all figures here are too low",
    )


def _threads(s: Situation) -> Advice | None:
    if s.threads == s.cores:
        return None
    number = "more" if s.threads < s.cores else "fewer"
    do = f"use {number} threads: --threads {s.cores}"
    why = f"{_threads_text(s.threads)} on {s.cores} {'core' if s.cores == 1 else 'cores'}; with {s.cores}, "
    if s.cores_seconds is None:
        return _by_limits(s, "threads", do, f"{why}bandwidth and arithmetic measured here allow {_gains(s, 'threads')}")
    prompt, token = s.cores_seconds
    gains = f"prompts {s.prompt.seconds / prompt:.2f}x, generation {s.one.seconds / token:.2f}x"
    return _changed(s, "threads", prompt, token, do, f"{why}measured here: {gains}")


def _kernels(s: Situation) -> Advice | None:
    if s.level == s.best_level:
        return None
    return _by_limits(
        s,
        "kernels",
        "unset WOOLLY_ISA",
        f"it asks for {s.level} kernels, and this processor has {s.best_level}: {_gains(s, 'kernels')}",
    )


def _quantization(s: Situation) -> Advice | None:
    if s.bits <= s.target_bits:
        return None
    smaller = s.target_bits / s.bits
    return _by_limits(
        s,
        "quantization",
        f"use a {s.target_type} file of this model",
        f"{s.bits:.1f} to {s.target_bits:.1f} bits per weight: {s.token_bytes / 1e9:.2f} GB become"
        f" {s.token_bytes * smaller / 1e9:.2f} GB to read per token; {_gains(s, 'quantization')}",
    )


def _memory(s: Situation) -> Advice | None:
    missing = s.weight_bytes - s.kept_bytes
    if s.disk_bytes > 0.01 * s.token_bytes:
        return _changed(
            s,
            "memory",
            s.prompt.seconds,
            _without(s.one, s.one.seconds),
            "use a machine with more memory, or a smaller quantization",
            f"the weights take {s.weight_bytes / 1e9:.1f} GB and {s.available_bytes / 1e9:.1f} GB are left:"
            f" every token reads {s.disk_bytes / 1e6:.0f} MB from the disk",
        )
    if missing <= 0.01 * s.weight_bytes:
        return None
    # The tokens of a prompt, taken together, use all experts.
    prompt, token = _without(s.prompt, s.packing_seconds / s.used_share), _without(s.one, s.packing_seconds)
    return _changed(
        s,
        "memory",
        prompt,
        token,
        "keep all weights prepared: leave out --weight-memory",
        f"{missing / 1e9:.2f} of {s.weight_bytes / 1e9:.2f} GB of weights are prepared anew whenever they are used,"
        f" which takes {(s.one.seconds - token) * 1e3:.0f} of the {s.one.seconds * 1e3:.0f} ms of a token;"
        f" {s.available_bytes / 1e9:.1f} GB of memory are free",
    )


def _without(run: Run, seconds: float) -> float:
    """Return the seconds of a run minus `seconds`, but at least its limit."""
    return max(min(run.limit, run.seconds), run.seconds - seconds)


def _kv_type(s: Situation) -> Advice | None:
    attention = s.one.part("attention")
    others = {name: seconds for name, seconds in s.kv_seconds.items() if name != s.kv_type}
    if attention is None or not others or s.kv_type not in s.kv_seconds:
        return None
    name = min(others, key=lambda other: others[other])
    ratio = others[name] / s.kv_seconds[s.kv_type]
    price = "twice the memory" if name == "f32" else "half the memory" if s.kv_type == "f32" else "a little less exact"
    if name == "q4":
        price = "less exact: woolly perplexity --kv-type q4 --kl shows how much"
    return _changed(
        s,
        "kv_type",
        s.prompt.seconds,
        s.one.seconds - attention.seconds * (1 - ratio),
        f"keep the cache as {name}: --kv-type {name}",
        f"attention over {s.depth} tokens takes {attention.seconds / s.one.seconds:.0%} of a token's time, and measured"
        f" with {name} ({price}) {ratio:.0%} of that",
    )


def _context(s: Situation) -> Advice | None:
    attention, prompt_attention = s.one.part("attention"), s.prompt.part("attention")
    if attention is None or s.depth < 2 * s.prompt.n_tokens or attention.seconds < 0.2 * s.one.seconds:
        return None
    in_prompt = prompt_attention.seconds if prompt_attention is not None else 0.0
    # Attention time is proportional to the number of tokens read: cached tokens and, on average, half of the prompt.
    own = s.prompt.n_tokens / 2
    return _changed(
        s,
        "context",
        s.prompt.seconds - in_prompt * (s.depth / 2) / (s.depth + own),
        s.one.seconds - attention.seconds / 2,
        f"keep the context shorter: {s.depth // 2} tokens instead of {s.depth}",
        f"attention takes {attention.seconds / s.one.seconds:.0%} of a token's time, and half of that with half of the"
        " context",
    )


def _batch(s: Situation) -> Advice | None:
    gain = s.several.rate / s.one.rate
    if gain < 1.3:
        return None
    return Advice(
        "batch",
        gain,
        f"serve {s.several.n_tokens} requests at once",
        f"for a single one {_headroom(s)}; {s.several.n_tokens} at once read each weight once for all:"
        f" {s.several.rate:.1f} instead of {s.one.rate:.1f} tokens/s, measured",
    )


def _nothing(s: Situation) -> Advice:
    return Advice("nothing", 1.0, "nothing: no setting would help", f"for a single request {_headroom(s)}")


def _headroom(s: Situation) -> str:
    reached = s.one.limit / s.one.seconds
    if reached >= 0.8:
        return f"this is as fast as this machine can ({reached:.0%} of what its {s.one.bound} allows)"
    return f"no setting helps ({reached:.0%} of what the machine's {s.one.bound} allows, the rest is Woolly's to gain)"


def _gains(s: Situation, change: str) -> str:
    prompt = s.prompt.seconds / max(s.prompt.seconds_after(change), 1e-12)
    token = s.one.seconds / max(s.one.seconds_after(change), 1e-12)
    return f"prompts {prompt:.2f}x, generation {token:.2f}x"


def _threads_text(n: int) -> str:
    return "1 thread" if n == 1 else f"{n} threads"
