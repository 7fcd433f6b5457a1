"""The fenced blocks of the project's Markdown, and the marks that stand before them.

<!-- not run: reason -->   what follows needs something that a test has not
<!-- fails -->             the commands end with an error
<!-- output -->            what the block before it writes; … stands for anything
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")))

_MARK = re.compile(r"<!-- (fails|output|not run: .+?) -->")


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # of its first line of text
    language: str
    text: str
    mark: str = ""

    @property
    def not_run(self) -> str:
        """Why, or nothing."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """Fenced blocks of one page, in order."""
    found: list[Block] = []
    lines = (ROOT / page).read_text().splitlines()
    i = 0
    while i < len(lines):
        fence = re.fullmatch(r"( *)```(\w*)", lines[i])
        if not fence:
            assert not lines[i].lstrip().startswith("```"), f"{page}:{i + 1}: a fence that no test would find"
            i += 1
            continue
        end = lines.index(f"{fence[1]}```", i + 1)
        mark = _MARK.fullmatch(lines[i - 1].strip()) if i else None
        text = "\n".join(line.removeprefix(fence[1]) for line in lines[i + 1 : end]) + "\n"
        found.append(Block(page, i + 2, fence[2], text, mark[1] if mark else ""))
        i = end + 1
    return found


def prose_of(page: str) -> str:
    """A page without its blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
