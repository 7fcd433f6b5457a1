"""The page of chat templates is what the templates give, and none of their checks fails."""

from docs.tools import chat_templates
from tests.cases.templates import need_templates

PAGE = chat_templates.PAGE


def test_page_of_chat_templates_is_up_to_date():
    need_templates()
    assert chat_templates.reference() == PAGE.read_text()


def test_every_check_of_a_chat_template_passes():
    table = PAGE.read_text().partition("| template | calls |")[2].splitlines()[2:]
    assert len(table) == 68
    assert [row for row in table if "| no |" in row] == []
    assert sum("| derived |" in row[: row.index("|", row.index("|", 2) + 2) + 1] for row in table) >= 60
