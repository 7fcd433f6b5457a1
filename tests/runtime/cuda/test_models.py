"""A tiny model on the emulated GPU: rows, products, experts, attention and recurrence together; models.py runs all."""

from tests.runtime.cuda.models import check


def test_a_hybrid_model_gives_the_logits_of_the_reference_and_the_same_bits_in_pieces(tmp_path):
    assert check("qwen3next", tmp_path, 8, 1, 1, 2) < 8e-5  # as the cpu backend's through slots
