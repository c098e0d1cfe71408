"""What holding a reply to a grammar costs: the time of a token with and without, one by one, and with guesses.

python bench/constrained.py [--model smollm2] [--tokens 64] [--rounds 9]

The grammar allows any JSON string, so that nearly the whole vocabulary stays allowed and nothing is forced; the last
row is a schema whose keys are forced, guessed and verified several in a run.
"""

from __future__ import annotations

import argparse
import statistics

from common import Run, interleaved, machine, median_ratio

from onhand.decoding.engine import Engine
from onhand.decoding.window import Prompt
from onhand.grammar import Grammar
from onhand.options import CacheOptions, DeviceOptions, GenerationOptions
from onhand.types import DoneEvent
from onhand_cpu import backend
from support.real import MODELS, prose_ids, real_package, real_tokenizer

PLAIN, STRING, KEYS = "no grammar", "a JSON string", "a schema of eight long keys"
GRAMMARS = {
    PLAIN: None,
    STRING: Grammar.json_schema({"type": "string", "minLength": 4000}),
    KEYS: Grammar.json_schema(
        {
            "type": "object",
            "properties": {
                f"the_number_of_things_{n}": {"type": "integer", "minimum": 0, "maximum": 99} for n in range(8)
            },
            "required": [f"the_number_of_things_{n}" for n in range(8)],
            "additionalProperties": False,
        }
    ),
}


def run_of(engine: Engine, ids: list[int], grammar: Grammar | None, tokens: int) -> Run:
    """Seconds a token, the prompt's reading left out."""
    speculate = None if grammar is GRAMMARS[KEYS] else False
    options = GenerationOptions(temperature=0.7, seed=1, max_tokens=tokens, grammar=grammar, speculate=speculate)

    def run() -> float:
        *_, done = engine.stream(Prompt(ids), options)
        assert isinstance(done, DoneEvent)
        return done.reply.usage.decode_seconds / (done.reply.usage.completion_tokens - 1)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    runtime = backend.load(real_package(arguments.model), CacheOptions(context_tokens=512), DeviceOptions(threads=2))
    engine = Engine(runtime, real_tokenizer(arguments.model))
    ids = prose_ids(arguments.model, 64)
    runs = {name: run_of(engine, ids, grammar, arguments.tokens) for name, grammar in GRAMMARS.items()}
    print(f"{machine()}; {arguments.model}, {arguments.tokens} tokens, {arguments.rounds} rounds")
    times = interleaved(runs, arguments.rounds)
    print("| | ms a token | against none |\n|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {1e3 * statistics.median(seconds):.1f} | {median_ratio(seconds, times[PLAIN]):.3f} |")
    engine.close()


if __name__ == "__main__":
    main()
