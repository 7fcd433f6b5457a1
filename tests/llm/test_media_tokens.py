"""Images of a conversation as the engine takes them."""

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM
from woolly.chat import Modalities, format_chat
from woolly.errors import RequestError
from woolly.llm.prompts import read_chat
from woolly.multimodal import Placeholder, VisionSettings
from woolly.multimodal.image import Image
from woolly.sampling import SamplingParams
from woolly.templates import ChatTemplate

TURNS = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
VISION = Modalities(VisionSettings("image", "qwen2vl_merger", 56, 14, (0.5,) * 3, (0.5,) * 3, merge_size=2))
PIXELS = np.zeros((56, 84, 3), np.uint8)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    with LLM(write_tiny(TINY["granite"], tmp_path_factory.mktemp("modalities") / "tiny.gguf"), ctx=64) as llm:
        yield llm


def laid_out(llm, modalities, **options):
    return format_chat(read_chat("hi", SamplingParams(), **options), ChatTemplate(TURNS), llm.tokenizer, modalities)


def test_image_rows_replace_the_marker(llm, monkeypatch):
    pytest.importorskip("PIL.Image")
    monkeypatch.setattr(llm, "modalities", VISION)
    layout = laid_out(llm, VISION, images=[PIXELS])
    ids = llm._encoded(layout)
    (rows,) = [id for id in ids if isinstance(id, Placeholder)]
    assert (rows.n, rows.grid_thw) == (6, (1, 2, 3))
    assert llm.detokenize([id for id in ids if isinstance(id, int)]) == "user: <|vision_start|><|vision_end|>\nhi\n"
    assert llm.count_tokens(layout) == len(ids) - 1 + 6
    plain = llm.count_tokens(laid_out(llm, VISION))
    assert llm.image_tokens(Image(PIXELS)) == llm.count_tokens(layout) - plain - 1  # a line end is between them


def test_text_model_rejects_images(llm):
    with pytest.raises(RequestError, match=r"images\[0\]: this model does not support images"):
        llm.chat("hi", images=[PIXELS])
    with pytest.raises(RequestError, match="this model does not support images"):
        llm.image_tokens(Image(PIXELS))
    with pytest.raises(RequestError, match="images is of type str; expected a list of images"):
        llm.chat("hi", images="a.png")
    with pytest.raises(RequestError, match="must have the role user, but it has 'assistant'"):
        llm.chat([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], images=[PIXELS])
