"""Responses in the background belong to the key that asked, and end with the server."""

import time


def test_another_key_neither_sees_streams_nor_cancels_them(app_with, brake):
    with app_with(api_key=("one", "two")) as client:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = {"model": "tiny", "input": "hi", "background": True, "max_output_tokens": 30}
        id = client.post("/v1/responses", json=body, headers=one).json()["id"]
        at = f"/v1/responses/{id}"
        for method, path in (
            ("GET", at),
            ("GET", f"{at}?stream=true"),
            ("GET", f"{at}/input_items"),
            ("POST", f"{at}/cancel"),
            ("DELETE", at),
            ("GET", f"/v1/stream?conv_id={id}"),
        ):
            assert client.request(method, path, headers=two).status_code == 404, path
        client.delete(f"/v1/stream?conv_id={id}", headers=two)  # does nothing
        asked = {**body, "background": False, "stream": True, "max_output_tokens": 1}
        client.post("/v1/responses", json=asked, headers={**two, "X-Conversation-Id": id})
        assert client.get(at, headers=one).json()["status"] in ("queued", "in_progress")
        brake.let_go()
        end = time.monotonic() + 60
        while (status := client.get(at, headers=one).json()["status"]) in ("queued", "in_progress"):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert status in ("completed", "incomplete")


def test_stopping_server_ends_background_responses(app_with, brake):
    with app_with() as client:
        body = {"model": "tiny", "input": "hi", "background": True}
        client.post("/v1/responses", json=body)
        streams = client.app.state.streams
    assert not streams._streams
