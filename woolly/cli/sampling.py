"""The options that say how an answer is sampled: llama.cpp's names, one table for all commands."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woolly.cli.usage import UsageError

if TYPE_CHECKING:
    from woolly.engine import SamplingParams

__all__ = ["SAMPLING", "SamplerOption", "sampling_params", "takes_sampling"]


@dataclass(frozen=True)
class SamplerOption:
    """A field of SamplingParams as an option. The default is for people to read: what is not given is not passed on."""

    field: str
    names: str
    kind: Any
    default: str
    help: str

    def parameter(self) -> inspect.Parameter:
        """As typer reads it."""
        option = typer.Option(
            *self.names.split(), help=self.help, show_default=self.default or False, rich_help_panel="Sampling"
        )
        return inspect.Parameter(
            self.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[self.kind | None, option]
        )


_O = SamplerOption
SAMPLING = (
    _O("temperature", "--temperature --temp", float, "0.8", "0 takes the likeliest token each time."),
    _O("top_k", "--top-k", int, "40", "Draw from so many likeliest tokens; 0 for all."),
    _O("top_p", "--top-p", float, "0.95", "Draw from the likeliest tokens that add up to this share."),
    _O("min_p", "--min-p", float, "0.05", "Drop tokens less likely than this share of the likeliest."),
    # -s is the seed here as it is in `serve` and in llama.cpp.
    _O("seed", "--seed -s", int, "random", "The same seed gives the same answer; -1 for a random one."),
    _O("repeat_penalty", "--repeat-penalty", float, "1.0", "Above 1, tokens that were used are less likely."),
    _O("repeat_last_n", "--repeat-last-n", int, "64", "Tokens that the penalties look back on; -1 for all."),
    _O("presence_penalty", "--presence-penalty", float, "0.0", "Taken from tokens that were used at all."),
    _O("frequency_penalty", "--frequency-penalty", float, "0.0", "Taken from tokens for each time they were used."),
    _O("typical_p", "--typical --typical-p", float, "1.0", "Locally typical sampling; 1 for none."),
    _O("top_n_sigma", "--top-nsigma --top-n-sigma", float, "-1.0", "Keep tokens within so many standard deviations."),
    _O("xtc_probability", "--xtc-probability", float, "0.0", "How often the likeliest tokens are left out."),
    _O("xtc_threshold", "--xtc-threshold", float, "0.1", "Likelihood above which XTC leaves tokens out."),
    _O("dynatemp_range", "--dynatemp-range", float, "0.0", "How far the temperature follows the entropy."),
    _O("dynatemp_exponent", "--dynatemp-exp", float, "1.0", "How it follows it."),
    _O("dry_multiplier", "--dry-multiplier", float, "0.0", "Penalty on repeated passages (DRY)."),
    _O("dry_base", "--dry-base", float, "1.75", "How DRY grows with the passage."),
    _O("dry_allowed_length", "--dry-allowed-length", int, "2", "Tokens that DRY lets repeat."),
    _O("dry_penalty_last_n", "--dry-penalty-last-n", int, "-1", "Tokens that DRY looks back on; -1 for all."),
    _O("dry_sequence_breakers", "--dry-sequence-breaker", list[str], "", "Text that no repeat reaches over; several."),
    _O("mirostat", "--mirostat", int, "0", "Version of Mirostat, 1 or 2; it stands in for the others."),
    _O("mirostat_tau", "--mirostat-ent", float, "5.0", "The surprise that Mirostat holds, in bits."),
    _O("mirostat_eta", "--mirostat-lr", float, "0.1", "How fast Mirostat corrects it."),
    _O("samplers", "--samplers", str, "", "Which samplers run and in which order, such as top_k;temperature."),
    _O("logit_bias", "--logit-bias -l", list[str], "", "ID+BIAS or ID-BIAS makes a token likelier or not; several."),
    _O("ignore_eos", "--ignore-eos", bool, "", "Go on where the model would end its answer."),
)


def takes_sampling(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all these options; those that were typed come to its parameter `sampling` as a dict."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "sampling":
            parameters += [option.parameter() for option in SAMPLING]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def taking(**given: Any) -> None:
        typed = {option.field: given.pop(option.field) for option in SAMPLING}
        command(**given, sampling={name: value for name, value in typed.items() if value not in (None, [])})

    taking.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return taking


def sampling_params(sampling: dict[str, Any], **others: Any) -> SamplingParams:
    """Those that were typed, and what else the command asks for."""
    from woolly.engine import SamplingParams

    given = dict(sampling)
    if given.get("temperature", 0) < 0:
        # The library takes it for 0, as llama.cpp does; of a person it is a slip of the finger.
        raise UsageError(
            f"--temperature is {given['temperature']}; a number of at least 0 was expected, 0 for the likeliest token"
        )
    if given.get("seed") == -1:
        del given["seed"]
    if "samplers" in given:
        given["samplers"] = tuple(re.split(r"[;,]\s*", given["samplers"].strip(";, ")))
    if "logit_bias" in given:
        given["logit_bias"] = dict(map(_bias, given["logit_bias"]))
    if "dry_sequence_breakers" in given:
        breakers = given["dry_sequence_breakers"]
        given["dry_sequence_breakers"] = () if breakers == ["none"] else tuple(breakers)
    return SamplingParams(**given, **others)


def _bias(text: str) -> tuple[int, float]:
    found = re.fullmatch(r"(\d+)([+-](?:\d+\.?\d*|\.\d+|inf))", text.strip())
    if found is None or found[2] == "+inf":
        raise UsageError(f"--logit-bias is {text!r}; a token's id and its bias were expected, such as 504+1 or 504-inf")
    return int(found[1]), float(found[2])
