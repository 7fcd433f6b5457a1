"""Test lines for tokenizers, with every kind of character that pre-tokenizers treat differently."""

from __future__ import annotations

import random
import unicodedata

_WORDS = [
    "The",
    "the",
    "quick",
    "brown",
    "fox",
    "I'm",
    "we've",
    "they'll",
    "don't",
    "CAN'T",
    "it's",
    "HTTPServer",
    "camelCase",
    "snake_case",
    "kebab-case",
    "naïve",
    "café",
    "Straße",
    "Ελλάδα",
    "Ωμέγα",
    "привет",
    "МИР",
    "слово",
    "שלום",
    "עולם",
    "مرحبا",
    "بالعالم",
    "नमस्ते",
    "दुनिया",
    "สวัสดี",
    "ภาษาไทย",
    "你好",
    "世界",
    "中文分词",
    "日本語",
    "ひらがな",
    "カタカナ",
    "한국어",
    "안녕하세요",
    "😀",
    "👩\u200d👩\u200d👧\u200d👦",
    "🇩🇪",
    "❤️",
    "½",
    "²",
    "ⅷ",
    "١٢٣",
    "４５６",
    "é",
    "ñ",
    "ü",
    "ß",
    "ø",
    "ł",
    "ı",
    "ﬁ",
    "Ⅳ",
    "ǅ",
    "ʰ",
]
_NUMBERS = [
    "0",
    "7",
    "42",
    "100",
    "1234",
    "12345",
    "123456",
    "1234567",
    "3.14159",
    "1,000,000",
    "2024-01-31",
    "0x1F",
    "1e-5",
    "50%",
    "$9.99",
    "№5",
    "v2.0.1",
]
_MARKS = (
    *"!?.,:;-_'\"()[]{}<>/\\|@#$%^&*+=~`—…“”«»、。！？",
    *(["...", "->", "=>", "::", "!=", "</s>", "<div>", "```", "’s"]),
)
_SPACES = [
    " ",
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    " \n",
    "\n ",
    "\r\n",
    "        ",
    "",
    "",
    "\u00a0",
    "\u3000",
    "\n\n\n  ",
]
_CODE = (
    "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i];\n}",
    '{"key": [1, 2.5, null], "text": "a\\nb"}',
    "SELECT * FROM t WHERE id>=10 AND name LIKE '%x%';",
    "https://example.org/a/b?c=d&e=f#g",
    "a" * 50 + " " * 20 + "1" * 30,
)


def verification_lines(n: int = 1500) -> list[str]:
    """Return the same composed test lines at every call. They are not normalized for byte-level vocabularies."""
    chance = random.Random(7)
    lines = ["", " ", "\n", *_CODE, *_WORDS, *_NUMBERS, *(f" {word}" for word in _WORDS)]
    kinds = (_WORDS, _WORDS, _WORDS, _NUMBERS, _MARKS)
    while len(lines) < n:
        parts = []
        for _ in range(chance.randint(1, 12)):
            parts += [chance.choice(chance.choice(kinds)), chance.choice(_SPACES)]
        lines.append("".join(parts))
    return [unicodedata.normalize("NFC", line) for line in lines]
