"""Mixture-of-experts op: data-dependent routing stays inside one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from woolly.plan.ops.basic import Act, Gate
from woolly.plan.ops.table import Cost, Load, op, weights_cost
from woolly.plan.recorder import Handle, Recorder

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step, Weight

Scoring = Literal["softmax", "sigmoid", "sparsemixer", "sqrt_softplus"]


def _experts_cost(plan: Plan, step: Step, load: Load) -> Cost:
    """Return the expected cost if each row chooses its experts independently and uniformly."""
    expected = sum(w.n_bytes * (1 - (1 - step.used_share(w)) ** load.total) for w in step.weights)
    return Cost(round(expected), weights_cost(plan, step, load).products)


class ExpertOps(Recorder):
    """Mixture-of-experts op of the tracer."""

    @op(
        inputs=("x", "router_x?", "residual?"),
        # "*_bias" has a row per expert, "*_scale" a factor per expert for the product.
        weights=(
            *("norm?", "router", "bias?", "select?", "table?"),
            *(f"{name}{end}" for name in ("gate", "up", "down") for end in ("", "_bias?", "_scale?")),
        ),
        matrices=("router", "gate", "up", "down"),
        attributes=(
            *("roles", "n_used", "scoring", "normalize", "weights_scale"),
            *("act", "limit?", "weigh", "groups?", "groups_used?", "group_top?", "cap?", "shared?"),
            *("eps", "scale", "epilogue"),
        ),
        scratch=("activations", "routes"),
        part="experts",
        cost=_experts_cost,
        by_row=True,
    )
    def moe(
        self,
        x: Handle,
        router: str,
        gate: str | None,
        up: str,
        down: str,
        *,
        n_experts: int,
        ffn: int,
        n_used: int,
        scoring: Scoring = "softmax",
        normalize: bool = False,
        weights_scale: float = 1.0,
        act: Gate | Act = "silu",
        limit: float = 0.0,
        select: str | None = None,
        table: str | None = None,
        groups: int = 0,
        groups_used: int = 0,
        group_top: int = 2,
        weigh: Literal["output", "input"] = "output",
        cap: float = 0.0,
        shared: int = 1,
        router_x: Handle | None = None,
    ) -> Handle:
        """Route each row to the `n_used` experts with the highest router scores. Ties go to the lower index.

        An expert computes down(act(gate x) * up x), with `limit` as in glu, or down(act(up x)) without a gate. If gate
        and up have the same name, they are the upper and lower half of its rows. Every `shared` consecutive experts
        share one matrix each of gate, up and down.

        The routing weight is the score, divided by the sum over the selected experts with `normalize`, times
        `weights_scale`. Scores are softmax, sigmoid or sqrt(softplus) over all experts. "sparsemixer" is a softmax per
        selected expert, best first, over the experts not selected before whose logit is lower by at most 2% of the
        larger magnitude. The weight multiplies the expert's output, or its input if `weigh` is "input". `cap` c
        replaces router logits with c * tanh(logit / c).

        `select` names a bias added to the scores for selection only. `table` names a table of the experts of each
        token, which replaces selection. With `groups`, only the `groups_used` groups with the highest sum of their
        `group_top` (1 or 2) best scores take part. The router reads `router_x` if given. Fusion passes add a norm, a
        scale and a residual.
        """
        if not 1 <= n_used <= n_experts:
            self._fail(f"moe uses {n_used} of {n_experts} experts; expected 1 to {n_experts}")
        if scoring not in get_args(Scoring):
            self._fail(f"moe got scoring {scoring!r}; expected one of {', '.join(get_args(Scoring))}")
        if scoring == "sparsemixer" and (normalize or select is not None or groups):
            self._fail("moe got scoring 'sparsemixer' with normalize, select or groups; it takes none of them")
        acts = get_args(Act if gate is None else Gate)
        if act not in acts:
            self._fail(f"moe got the activation {act!r}; expected one of {', '.join(acts)}")
        if limit and gate is None:
            self._fail(f"moe got a limit of {limit:g} without a gate")
        if cap < 0 or ((cap or shared > 1) and scoring == "sparsemixer") or shared < 1 or n_experts % shared:
            self._fail(f"moe of {n_experts} experts with scoring {scoring!r} got a cap of {cap:g}, and {shared} share")
        if groups and (n_experts % groups != 0 or not 1 <= groups_used <= groups or n_experts < 2 * groups):
            self._fail(f"moe uses {groups_used} of {groups} groups of {n_experts} experts; expected complete groups")
        if group_top not in (1, 2) or weigh not in ("output", "input"):
            self._fail(
                f"moe got a group_top of {group_top} and weighs the {weigh}; expected 1 or 2, and output or input"
            )
        weights = {"router": self._matrix(router)}
        routed = x if router_x is None else router_x
        if weights["router"].shape != (n_experts, routed.width):
            self._fail(
                f"{weights['router'].name} has shape {weights['router'].shape}, expected ({n_experts}, {routed.width})"
            )
        weights |= zip(("bias",), self._bias(router, weights["router"]), strict=False)
        if select is not None:
            weights["select"] = self._vector(select)
            if weights["select"].shape != (n_experts,):
                self._fail(f"{weights['select'].name} has shape {weights['select'].shape}, expected ({n_experts},)")
        if table is not None:
            weights["table"] = self._matrix(table)
            if weights["table"].shape[1] != n_used:
                self._fail(f"{weights['table'].name} has {weights['table'].shape[1]} experts of a token, not {n_used}")
            if select is not None or groups or scoring == "sparsemixer" or x.value.rows != "batch":
                self._fail("moe with experts of tokens takes no select, groups or sparsemixer, and all rows")
        n_matrices = n_experts // shared
        inner, outer = (n_matrices, ffn, x.width), (n_matrices, x.width, ffn)
        if gate == up:
            weights |= self._experts("gate", up, inner, 0) | self._experts("up", up, inner, ffn)
        else:
            weights |= ({} if gate is None else self._experts("gate", gate, inner)) | self._experts("up", up, inner)
        weights |= self._experts("down", down, outer)
        return self._step(
            "moe",
            (x,) if router_x is None else (x, router_x),
            x.value.rows,
            x.width,
            tuple(weights.values()),
            roles=" ".join(weights),
            n_used=n_used,
            scoring=scoring,
            normalize=bool(normalize),
            weights_scale=float(weights_scale),
            act=act,
            limit=self._limit("moe", act, limit),
            weigh=weigh,
            groups=groups,
            groups_used=groups_used if groups else 0,
            group_top=group_top if groups else 0,
            cap=float(cap),
            shared=shared if shared > 1 else 0,
            eps=0.0,
            scale=1.0,
            epilogue="none",
        )

    def _experts(self, role: str, name: str, shape: tuple[int, ...], first: int | None = None) -> dict[str, Weight]:
        """Return the experts' tensor (with `first`, a range of each expert's rows), with biases and scales."""
        weight = self._weight(name)
        bias = self._bias(name, weight) if len(weight.shape) == 3 else ()
        if first is not None and len(weight.shape) == 3:
            weight, *rest = (self._view(w, first, shape[1], 1) for w in (weight, *bias))
            bias = tuple(rest)
        if weight.shape != shape:
            self._fail(f"{weight.name} has shape {weight.shape}, expected {shape}: experts, rows, columns")
        out = {role: weight} | {f"{role}_bias": b for b in bias}
        if self.has(f"{name}.scale"):
            out[f"{role}_scale"] = self._vector(f"{name}.scale")
            if out[f"{role}_scale"].shape != shape[:1]:
                self._fail(f"{name}.scale has shape {out[f'{role}_scale'].shape}, expected ({shape[0]},)")
        return out
