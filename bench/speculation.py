"""Prompt lookup on a text-editing task and on free text: tokens per second with and without, and whether replies agree.

python bench/speculation.py [--rounds 5] [--model smollm2] [--tokens 160]
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, field, replace

from common import interleaved, machine, median_ratio
from peers import onhand_runtime

from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt
from onhand.options import GenerationOptions
from onhand.types import DoneEvent, Reply
from support.real import MODELS, prose, real_tokenizer


def tasks(name: str) -> dict[str, list[int]]:
    """Ids of a text that is to be written once more with a change, and of one that is to go on freely."""
    tokenizer = real_tokenizer(name)
    text = prose()[4000:4700]
    edit = f"The text:\n\n{text}\n\nThe same text, with every name in capital letters:\n\n{text[:60]}"
    start = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    return {"edit": [*start, *tokenizer.encode(edit)], "free": [*start, *tokenizer.encode(text)]}


@dataclass
class Decode:
    """Seconds a token of one reply, which it keeps."""

    engine: Engine
    ids: list[int]
    options: GenerationOptions
    reply: Reply = field(init=False)

    def __call__(self) -> float:
        *_, done = self.engine.stream(Prompt(self.ids), self.options)
        assert isinstance(done, DoneEvent)
        self.reply = done.reply
        return done.reply.usage.decode_seconds / done.reply.usage.completion_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    arguments = parser.parse_args()
    engine = Engine(onhand_runtime(arguments.model), real_tokenizer(arguments.model))
    print(f"{machine()}; {arguments.model}, {arguments.rounds} rounds of {arguments.tokens} tokens")
    for task, ids in tasks(arguments.model).items():
        for temperature in (0.0, 0.7):
            plain = GenerationOptions(temperature=temperature, seed=1, max_tokens=arguments.tokens, speculate=False)
            runs = {
                "plain": Decode(engine, ids, plain),
                "guessing": Decode(engine, ids, replace(plain, speculate=None)),
            }
            seconds = interleaved(runs, arguments.rounds)
            ratio = median_ratio(seconds["plain"], seconds["guessing"])
            usage = runs["guessing"].reply.usage
            print(
                f"{task} at temperature {temperature}: {1 / statistics.median(seconds['plain']):.1f} tok/s plain, "
                f"{ratio:.2f} times as fast with guesses, {usage.guessed_tokens} of {usage.completion_tokens} guessed; "
                f"the same text: {runs['plain'].reply.text == runs['guessing'].reply.text}"
            )


if __name__ == "__main__":
    main()
