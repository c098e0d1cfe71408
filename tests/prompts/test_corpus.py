"""What the 786 real templates of the corpus do with plain messages."""

import pytest

from onhand.errors import TemplateError, TemplateLimitError
from support.conversations import conversation
from support.templates import templates


def test_all_786_templates_compile() -> None:
    assert len(templates()) == 786


def test_a_plain_question_is_rendered_by_all_but_the_13_that_refuse_it_themselves() -> None:
    refused = []
    for name, template in templates().items():
        try:
            template.render(conversation("u"))
        except TemplateLimitError as error:
            pytest.fail(f"{name}: {error}")
        except TemplateError:
            refused.append(name)
    assert len(refused) == 13
