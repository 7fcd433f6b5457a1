"""Every single change of a setting is rejected, written, or without effect in transformers, too."""

from collections import Counter

import pytest

from tests.convert.config_probe import probe
from tests.convert.folders import listing

pytestmark = pytest.mark.rare

# Long divisors apply to all positions if the context needs them, but in transformers only beyond the original context.
CONTEXTS = ("phi-long", "phi-short", "phimoe", "minicpm3")
# Transformers' class always has ALiBi with the usual slopes; the publisher's code reads these settings, as Woolly does.
ALIBI = ("attn_config.alibi ", "attn_config.alibi_bias_max ")


@pytest.mark.parametrize("name", sorted(listing()))
def test_changed_settings_are_never_lost(name):
    for module in ("torch", "transformers", "gguf"):
        pytest.importorskip(module)
    counts = Counter()
    found = probe(name, counts)
    if found and found[0].startswith("not built: "):
        pytest.skip(found[0])
    wrong = [one for one in found if not (name in CONTEXTS and one.startswith("max_position_embeddings "))]
    wrong = [one for one in wrong if not (name == "mpt" and one.startswith(ALIBI))]
    assert not wrong and counts.total() > 5
