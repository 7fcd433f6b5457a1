"""PDF files by the SDKs of OpenAI and Anthropic, to a model that reads their text."""

import base64

import openai
import pytest

from tests.cases.later import Later
from tests.cases.pdfs import write_pdf

pytest.importorskip("pypdfium2")

anthropic = Later("anthropic")
DATA = base64.b64encode(write_pdf(["Wool is warm", ""])).decode()
URL = f"data:application/pdf;base64,{DATA}"


@pytest.fixture
def prompts(scripted):
    seen = []
    scripted.script = lambda layout: seen.append(layout.text) or "Yes."
    yield seen
    scripted.script = None


def check(prompt):
    assert "[wool.pdf, page 1 of 2]\nWool is warm\n" in prompt and "[wool.pdf, page 2 of 2]\n(it has no text" in prompt
    assert "Is it?" in prompt


def test_openai_file_parts(scripted, prompts):
    with openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="any", max_retries=0) as client:
        file = {"type": "file", "file": {"filename": "wool.pdf", "file_data": URL}}
        talk = [{"role": "user", "content": [file, {"type": "text", "text": "Is it?"}]}]
        assert client.chat.completions.create(model="tiny", messages=talk).choices[0].message.content == "Yes."
        item = {"type": "input_file", "filename": "wool.pdf", "file_data": URL}
        talk = [{"role": "user", "content": [item, {"type": "input_text", "text": "Is it?"}]}]
        assert client.responses.create(model="tiny", input=talk).output_text == "Yes."
        check(prompts[0])
        check(prompts[1])
        broken = {"type": "file", "file": {"filename": "wool.pdf", "file_data": URL[:200]}}
        with pytest.raises(openai.BadRequestError, match=r"wool\.pdf is a damaged PDF file"):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": [broken]}])


def test_anthropic_documents(scripted, prompts):
    source = {"type": "base64", "media_type": "application/pdf", "data": DATA}
    blocks = [{"type": "document", "source": source, "title": "wool.pdf"}, {"type": "text", "text": "Is it?"}]
    with anthropic.Anthropic(base_url=scripted.url, api_key="any", max_retries=0) as client:
        talk = [{"role": "user", "content": blocks}]
        reply = client.messages.create(model="tiny", max_tokens=200, messages=talk)
        assert reply.content[0].text == "Yes."
        check(prompts[0])
        assert client.messages.count_tokens(model="tiny", messages=talk).input_tokens > 100
