"""Gemini's routes as HTTP: bodies and replies as Google's API has them, and what is refused."""

import base64
import json

import pytest

from woolly.sampling import SamplingParams
from woolly.serving.dialects.gemini import DIALECT
from woolly.serving.dialects.gemini.bodies import GenerateBody
from woolly.serving.dialects.gemini.schema import json_schema
from woolly.serving.errors import ApiError

PATH = "/v1beta/models/tiny:generateContent"
STREAM = "/v1beta/models/tiny:streamGenerateContent?alt=sse"
HI = {"role": "user", "parts": [{"text": "one two"}]}
CONFIG = {"temperature": 0, "maxOutputTokens": 8, "topK": 40.0, "topP": 0.9, "seed": 7}
ASK = {"contents": [HI], "generationConfig": CONFIG, "safetySettings": [{"category": "X", "threshold": "BLOCK_NONE"}]}
WEATHER = {
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
}


def ask(client, body=ASK, path=PATH, **config):
    reply = client.post(path, json={**body, "generationConfig": {**body.get("generationConfig", {}), **config}})
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(reply):
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]


def read(**fields):
    return GenerateBody.model_validate({"contents": [HI], **fields}).to_chat(SamplingParams())


def test_answers_match_the_openai_api(client):
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "one two"}]
    sampling = {"temperature": 0, "max_tokens": 8, "top_k": 40, "top_p": 0.9, "seed": 7}
    wanted = client.post("/v1/chat/completions", json={"messages": talk, **sampling}).json()
    reply = ask(client, {**ASK, "systemInstruction": {"parts": [{"text": "Be kind."}]}})
    (candidate,) = reply["candidates"]
    assert candidate["content"] == {"parts": [{"text": wanted["choices"][0]["message"]["content"]}], "role": "model"}
    assert candidate["finishReason"] == {"length": "MAX_TOKENS", "stop": "STOP"}[wanted["choices"][0]["finish_reason"]]
    usage = reply["usageMetadata"]
    assert usage["promptTokenCount"] == wanted["usage"]["prompt_tokens"]
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + usage["candidatesTokenCount"]
    assert reply["modelVersion"] == "tiny" and reply["responseId"]


def test_stream_matches_the_complete_answer(client):
    whole = ask(client)
    reply = client.post(STREAM, json=ASK)
    assert reply.headers["content-type"].startswith("text/event-stream")
    chunks = events(reply)
    texts = [part["text"] for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(texts) == whole["candidates"][0]["content"]["parts"][0]["text"]
    assert [chunk["candidates"][0].get("finishReason") for chunk in chunks][-1] == "MAX_TOKENS"
    assert chunks[-1]["usageMetadata"]["totalTokenCount"] == whole["usageMetadata"]["totalTokenCount"]
    assert client.post(STREAM.partition("?")[0], json=ASK).status_code == 400


def test_several_candidates_and_logprobs(client):
    reply = ask(client, candidateCount=2, temperature=1.0, responseLogprobs=True, logprobs=2)
    assert [one["index"] for one in reply["candidates"]] == [0, 1]
    found = reply["candidates"][0]["logprobsResult"]
    assert len(found["chosenCandidates"]) == len(found["topCandidates"]) > 0
    assert len(found["topCandidates"][0]["candidates"]) == 2
    assert found["chosenCandidates"][0]["logProbability"] <= 0


@pytest.mark.parametrize(
    "config",
    [
        {"responseSchema": {"type": "OBJECT", "properties": {"a": {"type": "BOOLEAN"}}, "required": ["a"]}},
        {"responseJsonSchema": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}},
    ],
)
def test_schema_constrains_the_answer(client, config):
    reply = ask(client, responseMimeType="application/json", maxOutputTokens=200, **config)
    assert isinstance(json.loads(reply["candidates"][0]["content"]["parts"][0]["text"])["a"], bool)


def test_enum_is_answered_as_plain_text(client):
    schema = {"type": "STRING", "enum": ["red", "blue"]}
    reply = ask(client, responseMimeType="text/x.enum", responseSchema=schema)
    assert reply["candidates"][0]["content"]["parts"][0]["text"] in ("red", "blue")


def test_required_function_is_called(client):
    calling = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather"]}}
    schema = {**WEATHER["parameters"], "properties": {"city": {"type": "STRING", "enum": ["Rome"]}}}
    tools = [{"functionDeclarations": [{**WEATHER, "parameters": schema}]}, {"googleSearch": {}}]
    body = {**ASK, "tools": tools, "toolConfig": calling}
    reply = client.post(PATH, json={**body, "generationConfig": {"maxOutputTokens": 400, "temperature": 0}})
    parts = [part for part in reply.json()["candidates"][0]["content"]["parts"] if "functionCall" in part]
    assert {part["functionCall"]["name"] for part in parts} == {"weather"}
    assert parts[0]["functionCall"]["args"] == {"city": "Rome"} and parts[0]["functionCall"]["id"]
    assert "googleSearch" in reply.headers["x-woolly-ignored"]
    streamed = events(
        client.post(STREAM, json={**body, "generationConfig": {"maxOutputTokens": 400, "temperature": 0}})
    )
    calls = [part for one in streamed for part in one["candidates"][0]["content"]["parts"] if "functionCall" in part]
    assert calls[0]["functionCall"]["args"] == {"city": "Rome"}


def test_calls_and_their_results_are_read(client):
    signature = base64.b64encode(b"woolly:hm").decode()
    contents = [
        HI,
        {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "weather", "args": {"city": "Rome"}}, "thoughtSignature": signature},
                {"functionCall": {"id": "x", "name": "weather", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "x", "name": "weather", "response": {"error": "no city"}}},
                {"functionResponse": {"name": "weather", "response": {"output": "sunny"}}},
                {"text": "and?"},
            ],
        },
    ]
    chat = read(contents=contents, tools=[{"function_declarations": [WEATHER]}])
    _, answer, second, first, last = chat.messages
    assert [call.arguments for call in answer.calls] == ['{"city": "Rome"}', "{}"] and answer.reasoning == "hm"
    assert (second.call_id, second.text) == ("x", '{"error": "no city"}')
    assert (first.call_id, first.text, first.name) == (answer.calls[0].id, "sunny", "weather")
    assert (last.role, last.text) == ("user", "and?")
    assert chat.tools.mode == "auto" and chat.tools.tools[0].parameters["properties"] == {"city": {"type": "string"}}


def test_snake_case_names_and_thinking_are_read():
    chat = read(generation_config={"stop_sequences": ["x"], "thinking_config": {"thinking_budget": 0}})
    assert chat.params.stop == ("x",) and chat.reasoning.effort == "none"
    assert read(generationConfig={"thinkingConfig": {"thinkingLevel": "HIGH"}}).reasoning.effort == "high"


def test_thoughts_are_shown_on_request_and_round_trip_encrypted(app_with):
    source = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>' if add_generation_prompt }}{# </think> #}"
    config = {"temperature": 0, "maxOutputTokens": 6}
    with app_with(chat_template=source) as client:
        hidden = ask(client, {**ASK, "generationConfig": config})
        shown = ask(client, {**ASK, "generationConfig": config}, thinkingConfig={"includeThoughts": True})
    assert hidden["candidates"][0]["content"]["parts"] == [{"text": ""}]
    assert hidden["usageMetadata"]["thoughtsTokenCount"] > 0
    assert shown["candidates"][0]["content"]["parts"][0]["thought"] is True


def test_token_counts_match_the_usage_of_an_answer(client):
    n_tokens = ask(client)["usageMetadata"]["promptTokenCount"]
    path = "/v1beta/models/tiny:countTokens"
    assert client.post(path, json={"contents": [HI]}).json()["totalTokens"] == n_tokens
    inner = {"generateContentRequest": {"model": "models/tiny", "contents": [HI]}}
    assert client.post(path, json=inner).json()["totalTokens"] == n_tokens


def test_models_are_listed_with_their_limits(client):
    (model,) = client.get("/v1beta/models").json()["models"]
    assert model["name"] == "models/tiny" and model["inputTokenLimit"] == 512
    assert client.get("/v1beta/models/tiny").json() == model
    reply = client.get("/v1beta/models/none")
    assert reply.status_code == 404 and reply.json()["error"]["status"] == "NOT_FOUND"


def test_newer_google_clients_use_v1_routes(client):
    path = "/v1/models/tiny:generateContent"
    assert ask(client, path=path)["candidates"] == ask(client)["candidates"]
    assert client.post(path, json={"contents": []}).json()["error"]["status"] == "INVALID_ARGUMENT"
    google = {"x-goog-api-client": "google-genai-sdk/3.1.0"}
    assert client.get("/v1/models", headers=google).json() == client.get("/v1beta/models").json()
    assert client.get("/v1/models/tiny", headers=google).json()["name"] == "models/tiny"
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert client.post("/v1/completions", json={}).json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "robot", "parts": [{"text": "x"}]}]}, "contents.0.role"),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "x"}}]}]}, "inlineData"),
        ({"cachedContent": "cachedContents/1"}, "cachedContent"),
        ({"generationConfig": {"candidateCount": 9}}, "candidateCount"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "responseModalities"),
        ({"generationConfig": {"responseMimeType": "text/html"}}, "responseMimeType"),
        ({"generationConfig": {"responseSchema": {"type": "STRING"}}}, "responseMimeType"),
        ({"generationConfig": {"topP": 2}}, "top_p"),
        ({"generationConfig": {"logprobs": 2}}, "responseLogprobs"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "needs at least one function"),
        ({"tools": [{"functionDeclarations": [{**WEATHER, "parameters": {"type": "THING"}}]}]}, "parameters.type"),
    ],
)
def test_errors_have_the_google_format(client, fields, says):
    reply = client.post(PATH, json={**ASK, **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert says in error["message"], error


def test_unknown_fields_are_reported(client):
    config = {**CONFIG, "zzz": 1}
    reply = client.post(PATH, json={**ASK, "generationConfig": config, "foo": 2})
    reported = reply.headers["x-woolly-ignored"]
    assert reply.status_code == 200 and "generationConfig.zzz" in reported and "foo" in reported


def test_key_is_in_a_header_or_in_the_url(app_with):
    with app_with(api_key=("secret",)) as client:
        assert client.post(PATH, json=ASK).json()["error"]["status"] == "UNAUTHENTICATED"
        assert client.post(PATH, json=ASK, headers={"x-goog-api-key": "secret"}).status_code == 200
        assert client.post(f"{PATH}?key=secret", json=ASK).status_code == 200
        assert client.post(f"{PATH}?key=wrong", json=ASK).status_code == 401
        # Addresses end in logs and histories: the other dialects take no key from them.
        assert client.get("/v1/models?key=secret").status_code == 401


def test_too_long_prompt_has_the_google_message(client):
    long = {"contents": [{"parts": [{"text": "word " * 2000}]}]}
    message = client.post(PATH, json=long).json()["error"]["message"]
    assert message.startswith("The input token count (") and "(512)" in message
    frame = DIALECT.error_frame(ApiError(503, "code", "stopped"))
    assert json.loads(frame.decode()[6:])["error"]["status"] == "UNAVAILABLE"


def test_google_schema_becomes_a_json_schema():
    given = {
        "type": "OBJECT",
        "properties": {
            "b": {"type": "ARRAY", "items": {"type": "NUMBER", "format": "double"}, "minItems": "1"},
            "a": {"type": "STRING", "nullable": True, "enum": ["x"], "format": "enum"},
        },
        "propertyOrdering": ["a", "b"],
        "required": ["a"],
        "example": {},
    }
    found = json_schema(given, "s")
    assert found == {
        "type": "object",
        "required": ["a"],
        "properties": {
            "a": {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]},
            "b": {"type": "array", "minItems": 1, "items": {"type": "number"}},
        },
    }
    assert list(found["properties"]) == ["a", "b"]
    with pytest.raises(ApiError, match="minItems"):
        json_schema({"type": "ARRAY", "minItems": "many"}, "s")
