"""Flags for speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence

from woolly.cli.parse.flags.foreign_flag import ForeignFlag, alias, harmless, rejected, switch, words
from woolly.cli.parse.usage_errors import UsageError

_GUESSED = "the number of draft tokens adapts to their acceptance, up to --draft-max"
_NGRAMS = "prompt_lookup uses the longest match, limited by --draft-max"
_BESIDE = "the draft model uses the threads and the device of the main model"

# Draft methods by llama.cpp's types. The types of draft models depend on the file of --model-draft.
_MTP, _NGRAM, _FILES = "draft-mtp", "ngram-", ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")


def _method(value: str) -> Sequence[str]:
    """Return the draft method for one or several types of --spec-type."""
    kinds = [kind.strip() for kind in value.lower().split(",") if kind.strip()]
    unknown = [k for k in kinds if k not in ("none", _MTP, *_FILES) and not k.startswith(_NGRAM)]
    if unknown or not kinds:
        raise UsageError(
            f"--spec-type is {value!r}; expected none, {_MTP}, {', '.join(_FILES)}, ngram-mod, ngram-simple,"
            " ngram-map-k, ngram-map-k4v or ngram-cache"
        )
    has_ngrams = any(kind.startswith(_NGRAM) for kind in kinds)
    if _MTP in kinds:
        return ("--model-draft", "mtp_lookup" if has_ngrams else "mtp")
    if has_ngrams:
        return ("--model-draft", "prompt_lookup")
    return ("--model-draft", "none") if kinds == ["none"] else ()


SPECULATION = (
    alias("--spec-draft-model", "--model-draft"),
    alias("--spec-draft-n-max --draft-n --draft", "--draft-max"),
    ForeignFlag("--spec-type", "--model-draft", into=_method, is_weak=True),
    words("--spec-default", "--model-draft", "prompt_lookup", is_weak=True),
    harmless("--spec-type -md --model-draft --spec-draft-model", "this command does not use speculative decoding"),
    harmless("--draft-max --draft --draft-n --spec-draft-n-max", "this command does not use speculative decoding"),
    switch("--spec-default", "this command does not use speculative decoding"),
    harmless("--draft-min --draft-n-min --spec-draft-n-min --draft-p-min --spec-draft-p-min", _GUESSED),
    harmless("--draft-p-split --spec-draft-p-split", _GUESSED),
    harmless("--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match", _NGRAMS),
    harmless("--spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits", _NGRAMS),
    harmless("--spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits", _NGRAMS),
    harmless("--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits", _NGRAMS),
    harmless("--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits", _NGRAMS),
    harmless(
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        "prompt_lookup searches only the prompt and the answer",
    ),
    harmless("-td --threads-draft --spec-draft-threads", "the draft model uses --threads"),
    harmless("-tbd --threads-batch-draft --spec-draft-threads-batch", _BESIDE),
    harmless("-Cd --cpu-mask-draft --spec-draft-cpu-mask -Crd --cpu-range-draft --spec-draft-cpu-range", _BESIDE),
    harmless("-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch", _BESIDE),
    harmless("-Crbd --cpu-range-batch-draft --spec-draft-cpu-range-batch", _BESIDE),
    harmless("--cpu-strict-draft --spec-draft-cpu-strict --cpu-strict-batch-draft", _BESIDE),
    harmless("--spec-draft-cpu-strict-batch --prio-draft --spec-draft-prio --prio-batch-draft", _BESIDE),
    harmless("--spec-draft-prio-batch --poll-draft --spec-draft-poll --poll-batch-draft", _BESIDE),
    harmless("--spec-draft-poll-batch", _BESIDE),
    harmless(
        "-ctkd --cache-type-k-draft --spec-draft-type-k",
        "the draft model uses the cache type of the main model",
        done="f16",
    ),
    harmless(
        "-ctvd --cache-type-v-draft --spec-draft-type-v",
        "the draft model uses the cache type of the main model",
        done="f16",
    ),
    harmless("-otd --override-tensor-draft --spec-draft-override-tensor", _BESIDE),
    switch("-cmoed --cpu-moe-draft --spec-draft-cpu-moe", _BESIDE),
    harmless("-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe", _BESIDE),
    harmless("-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl", _BESIDE, done="0 auto"),
    harmless(
        "-devd --device-draft --spec-draft-device", "the draft model runs on the device of the main model", done="none"
    ),
    switch(
        "--spec-draft-backend-sampling",
        "sampling runs on the CPU",
        off_names="--no-spec-draft-backend-sampling",
        done="off",
    ),
    rejected(
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
        "download it with `woolly pull hf:org/repo:QUANT`, then use -md NAME",
    ),
)
