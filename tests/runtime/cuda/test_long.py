"""One row after more than 128 units of 256 positions, which blocks merge that meet."""

import numpy as np

from tests.cases.attention import _attention
from tests.runtime.cuda.test_attention import Attention
from woolly.runtime import Batch, pages_for

POSITION = 33_000


def test_row_after_many_splits_matches_separate_steps(tmp_path, monkeypatch):
    case, n_pages = _attention("long", 64, 3, "neox", "f16", kv_heads=1), pages_for(POSITION + 1)
    rng = np.random.default_rng(5)
    batch = Batch.of([([7], POSITION, rng.permutation(n_pages))])
    numbers = {name: rng.uniform(-1, 1, n_pages * 32 * 64).astype(np.float16) for name in "kv"}
    with case.open(tmp_path) as file:
        together, apart = (Attention(case, file, n_pages) for _ in range(2))
        for one in (together, apart):
            (entry,) = one.state.entries([0])
            for name, array in numbers.items():
                one.program.device.upload(entry[name], array)
        launch, launched = together.program.device.launch, []
        noted = lambda kernel, *rest: launched.append(kernel) or launch(kernel, *rest)  # noqa: E731
        monkeypatch.setattr(together.program.device, "launch", noted)
        whole = together.run(batch)
        for last in range(1, len(apart.program.plan.steps) + 1):
            want = apart.program.run(batch, apart.state, last - 1, last)
    assert "attend_decode_long_f16_64" in launched
    np.testing.assert_array_equal(whole, want)
