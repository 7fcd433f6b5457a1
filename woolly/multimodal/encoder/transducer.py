"""TracedTransducer: plans of the CTC head, or of the prediction and joint networks of RNN-T and TDT."""

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
    """Plans that decode encoder frames.

    CTC scores each frame separately. A transducer adds the output of its prediction network (LSTM) to the frame. In
    TDT, the joint network also scores durations, in the columns after the tokens.
    """

    kind: DecoderType
    tensors: Mapping[str, Tensor]
    joint: Plan  # CTC head or joint network: frames (+ prediction) to [n, tokens + durations]
    n_tokens: int  # including the blank, the last token
    predictor: Plan | None = None  # (token, state) to prediction and new state, concatenated
    n_state: int = 0  # width of the LSTM state
    durations: tuple[int, ...] = ()  # frames per duration class (TDT)
    max_symbols: int = 10  # maximum tokens per frame


def trace_transducer(
    kind: DecoderType, tensors: Mapping[str, Tensor], n_layers: int, durations: tuple[int, ...], max_symbols: int
) -> TracedTransducer:
    """Trace the decoder from `token_embd` and the tensors under `dec.`."""
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
    x = p.input(width=p.columns_of("token_embd"))
    p.output(p.linear(p.output_rows(x), "token_embd", width=p.rows("token_embd")), "embeddings", "none")


def _build_predictor(p: Tracer, n_layers: int) -> None:
    """Build the prediction network: an LSTM with gates in the order input, forget, output, cell."""
    n = p.columns_of("token_embd")
    x, state = p.embed("token_embd", width=n), p.input(width=2 * n_layers * n)
    kept: list[Handle] = []
    for i in range(n_layers):
        with p.scope(f"dec.lstm.{i}"):
            h, c = (p.slice(state, first=(2 * i + part) * n, width=n) for part in (0, 1))
            gates = p.linear(x, "input", width=4 * n) + p.linear(h, "hidden", width=4 * n)
            enters, stays, leaves = p.split(p.unary(p.slice(gates, first=0, width=3 * n), "sigmoid"), n, n, n)
            c = stays * c + enters * p.unary(p.slice(gates, first=3 * n, width=n), "tanh")
            x = leaves * p.unary(c, "tanh")
            kept += [x, c]
    out = p.linear(x, "dec.joint_pred", width=p.rows("dec.joint_pred"))
    for one in kept:
        out = p.concat(out, one)
    p.output(p.output_rows(out), "embeddings", "none")


def _build_joint(p: Tracer, n_durations: int) -> None:
    x = p.unary(p.output_rows(p.input(width=p.columns_of("dec.joint_out"))), "relu")
    out = p.linear(x, "dec.joint_out", width=p.rows("dec.joint_out"))
    if n_durations:
        out = p.concat(out, p.linear(x, "dec.joint_steps", width=n_durations))
    p.output(out, "embeddings", "none")
