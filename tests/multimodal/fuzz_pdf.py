"""Reads mutated PDF files: `python -m tests.multimodal.fuzz_pdf 5000` fails if one raises what it should not."""

import random
import sys

from tests.cases.pdfs import write_pdf
from tests.multimodal.fuzz import mutated
from woolly.errors import RequestError
from woolly.multimodal.pdf import read_pages


def main(count, seed=1):
    """Reads `count` mutated files and prints how many still had pages, and the sentences of the others."""
    chance = random.Random(seed)
    files = [write_pdf(["Hello", ""]), write_pdf(["x" * 50], "0 0 300 300"), write_pdf([""] * 3, "0 0 40 900")]
    n_read, faults = 0, {}
    for _ in range(count):
        try:
            for page in read_pages(mutated(chance.choice(files), chance), with_images=True):
                _ = page.image if page.compressed else None
            n_read += 1
        except RequestError as error:
            faults[str(error)[:60]] = faults.get(str(error)[:60], 0) + 1
    print(f"{n_read} of {count} had pages")
    for fault, n in faults.items():
        print(f"{n:6} {fault}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
