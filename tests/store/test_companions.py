"""Files beside a model's own, known by their names."""

import pytest

from woolly.store import is_companion


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("EAGLE3-LLaMA3.1-8B-Q8_0.gguf", True),
        ("Qwen3-8B-EAGLE3.gguf", True),
        ("Qwen3-8B-EAGLE3-Q4_K_M.gguf", True),
        ("repository/MTP-Qwen3.gguf", True),
        ("mmproj-F16.gguf", True),
        ("Qwen3-8B-Q4_K_M.gguf", False),
        ("MTPX-1B.gguf", False),
    ],
)
def test_draft_heads_are_found_in_any_case_at_the_beginning_or_end(name, is_one):
    assert is_companion(name) is is_one
