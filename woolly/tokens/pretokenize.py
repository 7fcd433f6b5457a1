"""Pre-tokenizers: split text into words before BPE merges, as selected by `tokenizer.ggml.pre`.

The patterns are those of the original tokenizers, in Oniguruma syntax. Each pattern splits the pieces of the previous
pattern. Unmatched text remains one piece.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches

from woolly.errors import UnsupportedError


@dataclass(frozen=True)
class Pretokenizer:
    """Pre-tokenizer and other properties of a family of BPE vocabularies."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # do not merge a word that is a token
    add_bos: bool = False  # default if the file has no value
    has_default_bos: bool = True  # False: no BOS token unless the file has one
    byte_level: bool = True  # bytes are written as printable characters; False: UTF-8 with <0xXX> fallback
    escape_spaces: bool = False  # replace spaces by U+2581
    always_bos: bool = False  # overrides the file, because known files are wrong
    whole_newlines: bool = False  # do not merge a run of newlines that is a token
    drop_spaces: bool = False  # whitespace separates words and is not encoded
    # Words end at a match of this pattern, so a long text can be encoded in chunks. Empty: words may have any length.
    cut: str = r"[A-Za-z](?=[ \n])"


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_LINES = r"[^\n]+|\n+"
_LETTER_LINE = r"[A-Za-z](?=\n)"  # for words that contain spaces


def _words(number: str, letters: str = r"\p{L}+", symbol: str = r"[^\s\p{L}\p{N}]+[\r\n]*") -> str:
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{number}| ?{symbol}|{_SPACES}"


def _cased_words(number: str, suffix: str = rf"{_CONTRACTION}?", tail: str = r"[\r\n/]*") -> str:
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{_UPPER}*{_LOWER}+{suffix}|{lead}{_UPPER}+{_LOWER}*{suffix}"
        rf"|{number}| ?[^\s\p{{L}}\p{{N}}]+{tail}|{_SPACES}"
    )


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

# Groups of three digits, counted from the right. A lookahead at every group would take quadratic time for long numbers.
# A lookahead at the start of the number, and \G for the following groups, splits at the same positions.
_GROUPED_NUMBERS = (r"\p{N}+", r"\A\p{N}{1,2}(?=(?>(?:\p{N}{3})+)\z)", r"\p{N}{3}")
_GROUPED_DIGITS = r"(?<!\d)\d{1,3}(?=(?>(?:\d{3})*)\b)|(?<=\d)\G\d{3}"
_DIGIT_BREAKS = (
    r"(?<!\d)\d{0,2}\K(?=(?>(?:\d{3})+)(?!\d))",
    r"\A\d{3}\K(?=(?>(?:\d{3})+)(?!\d))|(?<=\d)\G\d{3}\K(?=\d{3})",
)

_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)

_default = Pretokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_gpt2 = Pretokenizer((_GPT2,))
_digits = Pretokenizer((r"\p{N}", _GPT2))
_llama3 = Pretokenizer((_words(r"\p{N}{1,3}"),))
_qwen2 = Pretokenizer((_words(r"\p{N}"),))
_deepseek3 = Pretokenizer((r"\p{N}{1,3}", _CJK, _PUNCTUATED))
_gpt4o = Pretokenizer((_cased_words(r"\p{N}{1,3}"),))
_bloom = Pretokenizer((_BLOOM,))
_lines = Pretokenizer((_LINES,), byte_level=False, escape_spaces=True, cut=_LETTER_LINE)

_FAMILIES: tuple[tuple[Pretokenizer, str], ...] = (
    (
        _default,
        "default",
    ),
    (
        _gpt2,
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en "
        "jina-v2-code roberta-bpe mpt olmo jais trillion granite-docling exaone4",
    ),
    (
        _digits,
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    ),
    (
        _llama3,
        "dbrx smaug-bpe",
    ),
    (
        replace(_llama3, ignore_merges=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (
        replace(_llama3, has_default_bos=False),
        "glm4 chatglm-bpe",
    ),
    (
        _qwen2,
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
    ),
    (
        _deepseek3,
        "deepseek-v3 hunyuan-dense joyai-llm",
    ),
    (
        _gpt4o,
        "gpt-4o llama4 kanana2 talkie minimax-m2",
    ),
    (
        replace(_gpt4o, ignore_merges=True),
        "granite-embed-multi-97m",
    ),
    (
        _bloom,
        "poro-chat bloom gpt3-finnish",
    ),
    (
        _lines,
        "sarvam-moe",
    ),
    (
        replace(_lines, always_bos=True, whole_newlines=True),
        "gemma4 granite-embed-multi-311m",
    ),
    (
        Pretokenizer((_BLOOM, r"\p{N}")),
        "viking",
    ),
    (
        Pretokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9][0-9][0-9]")),
        "falcon",
    ),
    (
        Pretokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+$",
                _ASIAN,
                r"\p{N}+",
            )
        ),
        "deepseek-llm",
    ),
    (
        Pretokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _ASIAN, r"\p{N}")),
        "deepseek-coder",
    ),
    (
        Pretokenizer(
            (
                "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
                f"\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|{_CJK}",
                _cased_words(r"\p{N}"),
            ),
            ignore_merges=True,
        ),
        "youtu",
    ),
    (
        Pretokenizer(
            (
                _words(r"\p{N}{1,3}").removesuffix(r"|\s+(?!\S)|\s+")
                + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
                + r"|\s{1,2}(?!\S)|\s",
            )
        ),
        "jais-2",
    ),
    (
        Pretokenizer((_words(r"\p{N}", letters=r"[\p{L}\p{M}]+", symbol=r"[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),)),
        "qwen35",
    ),
    (
        Pretokenizer((_cased_words(r"\p{N}", suffix=""),), ignore_merges=True, add_bos=True),
        "tekken",
    ),
    (
        Pretokenizer(
            (
                r"<sentinel:[0-9]+>",
                r"IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
        "chameleon",
    ),
    (
        Pretokenizer((_GROUPED_DIGITS, _cased_words(r"\p{N}{1,3}"))),
        "tiny_aya cohere2moe",
    ),
    (
        Pretokenizer(
            (
                r"\p{Han}+|"
                + _cased_words(r"\p{N}{1,3}", tail=r"[\r\n]*")
                .replace(_UPPER, rf"{_UPPER[:-1]}&&[^\p{{Han}}]]")
                .replace(_LOWER, rf"{_LOWER[:-1]}&&[^\p{{Han}}]]"),
            )
        ),
        "kimi-k2",
    ),
    (
        Pretokenizer((r"\p{N}+", *_DIGIT_BREAKS), cut=""),
        "superbpe",
    ),
    (
        Pretokenizer(
            (
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
                r"|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
        "bailingmoe bailingmoe2 llada-moe",
    ),
    (
        Pretokenizer((_words(r"\p{N}", symbol=r"[^\s\p{L}\p{N}\r\n]+"),)),
        "seed-coder",
    ),
    (
        Pretokenizer(
            (
                *_GROUPED_NUMBERS,
                "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
                "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
                "\u1100-\u11ff]+",
                _PUNCTUATED,
            )
        ),
        "afmoe",
    ),
    (
        Pretokenizer((_LINES, _words(r"\p{N}"))),
        "laguna",
    ),
    (
        Pretokenizer(
            (
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            ),
            cut=_LETTER_LINE,
        ),
        "exaone-moe",
    ),
    (
        Pretokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True),
        "minicpm5",
    ),
    (
        Pretokenizer((r"\s+",), byte_level=False, drop_spaces=True),
        "whitespace",
    ),
)

PRETOKENIZERS: dict[str, Pretokenizer] = {name: pre for pre, names in _FAMILIES for name in names.split()}


def find_pretokenizer(name: str) -> Pretokenizer:
    """Return the pre-tokenizer `name`. An unknown name is an error, because a wrong split yields wrong tokens."""
    try:
        return PRETOKENIZERS[name]
    except KeyError:
        near = get_close_matches(name, PRETOKENIZERS, n=3, cutoff=0.5)
        hint = f"the nearest known names are {', '.join(near)}" if near else "no known name is near"
        raise UnsupportedError(f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre); {hint}") from None
