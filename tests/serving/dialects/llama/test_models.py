"""llama-server's routes for models: events of loading and unloading, and no removal of files."""

import json
import threading


def test_events_tell_when_a_model_is_loaded_and_unloaded(app_with, tiny_folder):
    with app_with() as client:
        (name,) = [row["id"] for row in client.get("/models").json()["data"]]
        replies = []
        reader = threading.Thread(target=lambda: replies.append(client.get("/models/sse")))
        reader.start()
        # The states are read every tenth of a second, so a state is kept until its event was sure to be sent.
        for action in ("load", "unload"):
            threading.Event().wait(0.4)
            assert client.post(f"/models/{action}", json={"model": name}).status_code == 200
        threading.Event().wait(0.4)
        client.app.state.health.set("draining", "the test ends")
        reader.join(60)
        assert not reader.is_alive()
        client.app.state.health.set("ready")
    (reply,) = replies
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line.startswith("data:")]
    assert {(event["model"], event["event"]) for event in events} == {(name, "model_status")}
    statuses = [event["data"]["status"] for event in events]
    assert statuses[-2:] == ["loaded", "unloaded"] and set(statuses[:-2]) <= {"loading"}


def test_model_files_are_not_deleted(app_with, tiny_folder):
    with app_with() as client:
        (name,) = [row["id"] for row in client.get("/models").json()["data"]]
        reply = client.delete("/models", params={"model": name})
        assert reply.status_code == 403 and "woolly rm" in reply.text
        assert client.delete("/models", params={"model": "nobody"}).status_code == 404
        assert client.delete("/models").status_code == 400
        assert [row["id"] for row in client.get("/models").json()["data"]] == [name]
