"""Heads of files of their own guess on a device of Vulkan: the text of the cpu backend without them."""

import numpy as np
import pytest

from tests.cases.assistants import assistant_tensors, write_assistant
from tests.cases.eagle3 import eagle3_tensors, write_eagle3
from tests.cases.families import FAMILIES
from tests.cases.tiny import metadata, write_tiny
from tests.engine.test_eagle3 import LAYERS, TARGET
from woolly import LLM, SamplingParams
from woolly.engine import AssistantProposer, MtpProposer
from woolly.engine.drafts.draft_cost import DraftCost
from woolly.engine.drafts.proposer import DraftLength
from woolly.engine.drafts.speculation_budget import SpeculationBudget

PROMPT = np.random.RandomState(5).randint(0, 256, 40).tolist()
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.mark.parametrize(("name", "draft"), [("eagle3", MtpProposer), ("gemma4-assistant", AssistantProposer)])
def test_draft_head_changes_no_text(name, draft, vulkan, tmp_path, monkeypatch):
    monkeypatch.setattr(DraftCost, "is_due", lambda self, n: False)
    monkeypatch.setattr(SpeculationBudget, "may_draft", lambda self, request: True)
    case = FAMILIES["gemma4"] if draft is AssistantProposer else TARGET
    model = write_tiny(case, tmp_path / "tiny.gguf")
    if draft is AssistantProposer:
        window = metadata(case)["attention.sliding_window"]
        head = write_assistant(tmp_path / "head.gguf", assistant_tensors(), window)
    else:
        head = write_eagle3(tmp_path / "head.gguf", eagle3_tensors(), LAYERS)
    monkeypatch.setattr(DraftLength, "next", lambda self, cost: 2)
    with LLM(model, ctx=64, threads=1, speculation=None) as llm:
        wanted = llm.generate(PROMPT, GREEDY).token_ids
    found = []
    for backend in ("cpu", "vulkan"):
        if backend == "vulkan":
            monkeypatch.setattr("woolly.engine.loading.load.get_backend", lambda *_: vulkan)
        with LLM(model, ctx=64, threads=1, speculation=head) as llm:
            guesses, propose = [], llm.engine.draft.propose
            monkeypatch.setattr(llm.engine.draft, "propose", lambda w, p=propose, g=guesses: g.append(p(w)) or g[-1])
            assert llm.generate(PROMPT, GREEDY).token_ids == wanted
            assert type(llm.engine.draft) is draft and llm.engine.program.about.backend == backend
        found.append(guesses)
    assert found[0] == found[1] and found[0]
