"""49 shapes of conversation through each of the 786 real templates: a whole prompt with closed turns, or a refusal.

What is asserted does not use the adapter's own checks. BR-13, BR-15.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache

import pytest

from onhand.errors import TemplateError, TemplateLimitError
from onhand.prompts.adapter import adapt
from onhand.prompts.template import ChatTemplate
from onhand.types import Message
from support.conversations import OWN_MARKERS, SHAPES
from support.templates import adapters, templates

ENDS = ("</s>", "<|return|>")  # the first is the EOS that the templates are given
MARKER = re.compile(r"<\|?[^\s<>]+\|?>|<｜[^<>｜]+｜>|\[/?[A-Z_]{3,}\]")
TURN_MARKERS = (
    *(("<|im_start|>", "<|im_end|>"), ("<start_of_turn>", "<end_of_turn>"), ("<|turn>", "<turn|>")),
    *(("[INST]", "[/INST]"), ("<|start_header_id|>", "<|end_header_id|>"), ("<|start|>", "<|end|>")),
    *(("<|start_of_role|>", "<|end_of_role|>"), ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")),
    *(("<|startofturn|>", "<|endofturn|>"), ("<|header_start|>", "<|header_end|>"), ("<mstart>", "<mend>")),
    *(("<|user_start|>", "<|user_end|>"), ("<|assistant_start|>", "<|assistant_end|>"), ("<role>", "</role>")),
    *(("<user>", "</user>"), ("<assistant>", "</assistant>"), ("<|role_start|>", "<|role_end|>")),
)

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
MOST_REFUSED = 27
"""Of 786: those that hold no conversation, and what few refuse by themselves. None of them is of FAMILIES."""

REFUSED_MORE = {
    "s": 82,  # 27 want a question; others lose a lone system text, or open no reply to it
    "a": 46,
    "sa": 47,
    "sua": 22,  # Mistral's write the system text into the last turn, and leave it out where that is a reply
    "suaaua": 27,
    "uat": 254,  # no place for a tool, or only for the answer to a call, which our messages do not carry
    "uatu": 258,
    "suatau": 262,
    "uattau": 261,
    "an empty assistant text": 36,  # Mistral's refuse it
    "markers of its own": 60,  # some templates take texts apart at them
}

UNEVEN = {
    # Templates whose makers pair the markers in no conversation, or not where a reply comes last.
    "AI4Chem-ChemLLM-7B-Chat-1_5-DPO": "closes no reply",
    "Apertus-8B-Instruct": "does not close a reply that comes last",
    "ByteDance-Seed-M3-Agent-Memorization": "closes no turn",
    "HuggingFaceTB-SmolLM3-3B@3e0e27": "does not close its system turn",
    "Motif-Technologies-Motif-2-12.7B-Reasoning": "closes one more than it opens",
    "SalmanHabeeb-qwen-llamafiles": "its transcripts lack the last marker",
    "allenai-Molmo2-8B": "does not close a reply that comes last",
    "augmxnt-shisa-gamma-7b-v1": "opens a first turn only for system text",
    "jondurbin-bagel-dpo-34b-v0.2": "opens a first turn only for system text",
    "turboderp-Cat-Llama-3-70B-instruct": "its transcripts lack the last marker",
    "upstage-solar-pro2-tokenizer": "closes a system turn that is not there",
    "utter-project-SpireNoBlocks": "its transcripts lack the last marker",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_template_renders_it_whole_or_says_why_not(shape: str) -> None:
    refused, problems = 0, []
    for name, adapter in adapters().items():
        template = templates()[name]
        messages = [Message(one.role, one.content.replace(OWN_MARKERS, own_markers(template))) for one in SHAPES[shape]]
        try:
            prompt = adapter.render(messages)
            transcript = adapter.render(messages, add_generation_prompt=False)
        except TemplateLimitError as error:
            found = [str(error)]
        except TemplateError as error:
            refused += 1
            found = list(wrong_refusal(template, adapt(messages, adapter.policy), str(error)))
            if shape not in REFUSED_MORE and name not in NO_CHAT and any(family in name.lower() for family in FAMILIES):
                found.append(f"a chat model's, with the policy {adapter.policy}, refuses: {error}")
        else:
            found = [*wrong_texts(messages, prompt), *wrong_texts(messages, transcript)]
            if name not in UNEVEN:
                found += wrong_turns(template.source, messages, prompt, transcript)
        problems += [f"{name}: {problem}" for problem in found]
    assert not problems, "\n".join(problems)
    assert refused <= REFUSED_MORE.get(shape, MOST_REFUSED)


def test_there_are_49_shapes_and_786_templates_and_no_two_are_the_same() -> None:
    assert len(SHAPES) == len({tuple(messages) for messages in SHAPES.values()}) == 49
    assert len(templates()) == len({template.sha256 for template in templates().values()}) == 786


def wrong_refusal(template: ChatTemplate, adapted: Sequence[Message], error: str) -> Iterator[str]:
    """It is the template's own, or tells which message has no place or which turns run into each other."""
    if not re.search(r"it has no place for message \d+ \(\w+\)|it does not keep these turns apart", error):
        forms: list[list[dict[str, object]]] = [
            [{"role": one.role, "content": one.content} for one in adapted],
            [{"role": one.role, "content": [{"type": "text", "text": one.content}]} for one in adapted],
        ]
        own = []
        for messages in forms:
            try:
                template.render_plain(messages)
            except TemplateError as refusal:
                own.append(str(refusal))
        if error not in own:
            yield f"{error!r} is not what it says: {own}"


def wrong_texts(messages: Sequence[Message], prompt: str) -> Iterator[str]:
    """Every text is there whole, once, and in order; an opening system text may stand elsewhere, and again."""
    end = 0
    opening = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    for place, message in enumerate(messages):
        found = where(message, prompt, 0 if place < opening else end)
        if found is None:
            yield f"text {place} is lost or out of order"
        elif place >= opening and message.content.strip():
            end = found[1]
            label = re.match(r"\s*(Text\d+)", message.content)
            if label and len(re.findall(rf"{label[1]}(?!\d)", prompt)) != 1:
                yield f"text {place} is there again"


def wrong_turns(source: str, messages: Sequence[Message], prompt: str, transcript: str) -> Iterator[str]:
    """What opens a turn is closed, by its own marker or by EOS; the generation prompt opens one more."""
    always_opens = prompt == transcript  # a template that knows no transcript without a generation prompt
    for text, most in ((without(messages, prompt), 1), (without(messages, transcript), int(always_opens))):
        for opening, closing in TURN_MARKERS:
            if opening in source and closing in source:
                left = text.count(opening) - text.count(closing)
                ends = sum(map(text.count, ENDS)) if left > most else 0
                if not 0 <= left <= most + ends:
                    yield f"{left} of {opening} are open, at most {most} may be"


def without(messages: Sequence[Message], prompt: str) -> str:
    """What the template wrote."""
    for message in messages:
        found = where(message, prompt, 0)
        if found:
            prompt = prompt[: found[0]] + prompt[found[1] :]
    return prompt


def where(message: Message, prompt: str, start: int) -> tuple[int, int] | None:
    """The first place of the text in one of the forms that a template may give it."""
    text = message.content.strip()
    forms = [text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]]
    if message.role == "assistant":
        forms.append(text.rpartition("</think>")[2].strip())
    found = [(prompt.find(form, start), -len(form)) for form in forms]
    begin, length = min((one for one in found if one[0] >= 0), default=(-1, 0))
    return None if begin < 0 else (begin, begin - length)


@cache
def own_markers(template: ChatTemplate) -> str:
    """The markers in a template's source; a thought is another matter."""
    return " ".join(sorted({marker for marker in MARKER.findall(template.source) if "think" not in marker}))
