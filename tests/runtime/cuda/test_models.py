"""A tiny model on the emulated GPU: rows, products, experts, attention and recurrence together; models.py runs all."""

from tests.runtime.cuda.models import check


def test_hybrid_model_matches_the_reference_with_the_same_bits_in_chunks(tmp_path):
    assert check("qwen3next", tmp_path, 8, 1, 1, 2) < 8e-5  # as the cpu backend's through slots
