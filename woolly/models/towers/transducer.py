"""The TracedTransducer: the small plans by which rows of an encoder become tokens, one frame after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from woolly.plan import Handle, Plan, Tracer

if TYPE_CHECKING:
    from woolly.gguf import Tensor

DecoderType = Literal["ctc", "rnnt", "tdt"]


@dataclass(frozen=True, eq=False)
class TracedTransducer:
    """What scores tokens of a frame; of a transducer, also what it makes of the token before.

    CTC scores each frame by itself. A transducer adds what its prediction network, an LSTM, made of the text so far;
    one with durations (TDT) scores them, too, in the columns after those of tokens.
    """

    kind: DecoderType
    tensors: Mapping[str, Tensor]
    joint: Plan  # [n, tokens and durations] of frames, or of sums of frames and the output of `predictor`
    n_tokens: int  # with the blank, the last
    predictor: Plan | None = None  # of a token and the state: what is added to frames, then the state after it
    n_state: int = 0  # numbers of the state
    durations: tuple[int, ...] = ()  # frames that a scored duration stands for
    max_symbols: int = 10  # tokens of one frame


def trace_transducer(
    kind: DecoderType, tensors: Mapping[str, Tensor], n_layers: int, durations: tuple[int, ...], max_symbols: int
) -> TracedTransducer:
    """The decoder of a file: the table of tokens, and the tensors whose names begin with `dec.`."""
    own = {name: one for name, one in tensors.items() if name.startswith(("dec.", "token_embd."))}
    if kind == "ctc":
        plan = _traced(own, _build_ctc_head, None)
        return TracedTransducer(kind, own, plan, plan.width)
    own_joint = {name: one for name, one in own.items() if name.startswith(("dec.joint_out.", "dec.joint_steps."))}
    left = {name: one for name, one in own.items() if name not in own_joint}
    predictor, joint = _traced(left, _build_predictor, n_layers), _traced(own_joint, _build_joint, len(durations))
    n_state = 2 * n_layers * own["token_embd.weight"].shape[1]
    n_tokens = joint.width - len(durations)
    return TracedTransducer(kind, own, joint, n_tokens, predictor, n_state, durations, max_symbols)


def _traced(tensors: Mapping[str, Tensor], build: Any, given: Any) -> Plan:
    tracer = Tracer("parakeet decoder", tensors, is_tower=True, ignored=())
    build(tracer, given)
    return tracer.plan()


def _build_ctc_head(p: Tracer, _: None) -> None:
    x = p.given(width=p.columns_of("token_embd"))
    p.output(p.linear(p.output_rows(x), "token_embd", width=p.rows("token_embd")), "embeddings", "none")


def _build_predictor(p: Tracer, n_layers: int) -> None:
    """An LSTM: gates for what comes in, what stays, what goes out, then what would come in."""
    n = p.columns_of("token_embd")
    x, state = p.embed("token_embd", width=n), p.given(width=2 * n_layers * n)
    kept: list[Handle] = []
    for i in range(n_layers):
        with p.scope(f"dec.lstm.{i}"):
            h, c = (p.columns(state, first=(2 * i + part) * n, width=n) for part in (0, 1))
            gates = p.linear(x, "input", width=4 * n) + p.linear(h, "hidden", width=4 * n)
            enters, stays, leaves = p.split(p.act(p.columns(gates, first=0, width=3 * n), "sigmoid"), n, n, n)
            c = stays * c + enters * p.act(p.columns(gates, first=3 * n, width=n), "tanh")
            x = leaves * p.act(c, "tanh")
            kept += [x, c]
    out = p.linear(x, "dec.joint_pred", width=p.rows("dec.joint_pred"))
    for one in kept:
        out = p.join(out, one)
    p.output(p.output_rows(out), "embeddings", "none")


def _build_joint(p: Tracer, n_durations: int) -> None:
    x = p.act(p.output_rows(p.given(width=p.columns_of("dec.joint_out"))), "relu")
    out = p.linear(x, "dec.joint_out", width=p.rows("dec.joint_out"))
    if n_durations:
        out = p.join(out, p.linear(x, "dec.joint_steps", width=n_durations))
    p.output(out, "embeddings", "none")
