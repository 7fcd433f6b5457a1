"""A request field about reasoning is one row of the table of vendor fields."""

import subprocess
import sys
from pathlib import Path

from woolly.serving.dialects.completions import vendor_fields

TABLE = Path(vendor_fields.__file__)
ROW = '    ThinkingField("think_hard", bool, "As reasoning_effort.", lambda on: Thinking("high" if on else "low")),\n'

PROGRAM = """
import sys, types
from pathlib import Path
table = types.ModuleType("woolly.serving.dialects.completions.vendor_fields")
sys.modules[table.__name__] = table
exec(compile(Path(sys.argv[1]).read_text(), sys.argv[1], "exec"), table.__dict__)

from woolly.sampling import SamplingParams
from woolly.serving.dialects.completions.bodies import ChatBody

for value in (True, False):
    body = ChatBody(messages=[{"role": "user", "content": "Hi"}], think_hard=value)
    print(body.to_chat(SamplingParams()).reasoning.effort)
print(ChatBody.model_json_schema()["properties"]["think_hard"]["description"])
"""


def test_request_field_is_one_row(tmp_path):
    text = TABLE.read_text()
    (place,) = (line for line in text.splitlines(keepends=True) if line.startswith("THINKING_FIELDS = ("))
    copy = tmp_path / "vendor_fields.py"
    copy.write_text(text.replace(place, place + ROW))
    run = subprocess.run([sys.executable, "-c", PROGRAM, str(copy)], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["high", "low", "As reasoning_effort."]
