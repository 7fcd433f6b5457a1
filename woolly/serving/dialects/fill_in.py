"""Fill-in-the-middle (FIM) prompts: the model completes the text between a prefix and a suffix."""

from __future__ import annotations

from collections.abc import Sequence

from woolly.serving.errors import ApiError
from woolly.tokens import Tokenizer

_REPOSITORY = "myproject"  # name used by llama-server


def fill_in(
    tokenizer: Tokenizer, prefix: str, suffix: str, *, begin: str = "", extra: Sequence[tuple[str, str]] = ()
) -> list[int]:
    """Return the prompt tokens: other files (name, text), prefix, suffix, and the beginning of the middle.

    Raises ApiError 400 if the model has no FIM tokens.
    """
    special = tokenizer.special
    before, after, middle = special.fim_pre, special.fim_suf, special.fim_mid
    if before is None or after is None or middle is None:
        raise ApiError(
            400, "not_supported", "this model has no fill-in-the-middle (FIM) tokens for a prefix and suffix"
        )

    def encode(text: str) -> list[int]:
        # Control tokens in files are tokenized as plain text.
        return tokenizer.encode(text, add_special=False, parse_special=False)

    ids: list[int] = []
    if special.fim_rep is not None and special.fim_sep is not None:
        if extra:
            ids += [special.fim_rep, *encode(f"{_REPOSITORY}\n")]
        for name, text in extra:
            ids += [special.fim_sep, *encode(f"{name}\n{text}")]
        if extra:
            ids += [special.fim_sep, *encode("filename\n")]
    else:
        for _, text in extra:
            ids += encode(text)
    ids += [before, *encode(prefix), after, *encode(suffix), middle, *encode(begin)]
    first = tokenizer.bos_id
    return [first, *ids] if tokenizer.add_bos and first is not None else ids
