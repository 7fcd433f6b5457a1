"""Sampling options, created from the fields of SamplingParams."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from woolly.cli.parse.parameter import Bundle, Option
from woolly.errors import RequestError
from woolly.sampling import SamplingParams, options_of
from woolly.sampling.option import read_typed
from woolly.store import publisher_sampling

if TYPE_CHECKING:
    from woolly.llm import LLM

_ROWS = options_of(SamplingParams)

# Command line syntax of values that have another form in Python, and additional help.
_FORMS: dict[str, tuple[Any, str]] = {
    "names": (str, ""),
    "json": (list, " Typed as ID+BIAS or ID-BIAS; several."),
}


def sampler_options(params: type) -> tuple[Option, ...]:
    """Return the options for fields of SamplingParams (or a subclass) that have a flag."""
    options = []
    for row in options_of(params).values():
        if not row.flags:
            continue
        kind, more = _FORMS.get(row.form, (list, " Several.") if row.kind == list[str] else (row.kind, ""))
        # The default is only shown. Options that are not typed are not passed on.
        shown = row.shown or (str(row.default) if kind in (int, float) else "")
        options.append(Option(row.flags, row.help + more, kind, to=row.name, shown=shown, section="Sampling"))
    return tuple(options)


SAMPLING = Bundle("sampling", sampler_options(SamplingParams))


def sampling_params(sampling: dict[str, Any], llm: LLM | None = None, **others: Any) -> SamplingParams:
    """Return SamplingParams from typed options, other fields of the command, and the model's preset.

    Without typed options and a preset, the publisher's sampling of the first model applies.
    """
    given = dict(sampling)
    for row in _ROWS.values():
        # As in llama.cpp, the library gives lower values a special meaning. Here they are typing errors.
        if row.typed_low is not None and given.get(row.name, row.typed_low) < row.typed_low:
            raise RequestError(
                f"{row.name} is {given[row.name]}; expected a number of at least {row.typed_low:g}: {row.help}",
                field=row.name,
            )
    given = read_typed(given)
    preset = None if llm is None else llm.preset
    if preset is None:
        if llm is not None and not given.keys() - {"seed", "stop"}:
            given = {**publisher_sampling(llm.path), **given}
        return SamplingParams(**given, **others)
    from woolly.llm.presets import defaults_of  # imported late: --help does without NumPy

    given |= {name: value for name, value in others.items() if value not in (None, ())}
    return replace(defaults_of(preset, SamplingParams()), **given)
