import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from onhand.decoding.sampling import Sampler, likeliest, min_p_count, penalized, top_p_count
from onhand.errors import NumericalError
from onhand.options import GenerationOptions

F32 = npt.NDArray[np.float32]

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PROBABILITIES = [0.05, 0.4, 0.25, 0.15, 0.1, 0.03, 0.02]
LOGITS = np.log(np.array(PROBABILITIES, np.float32))

finite_logits = arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-50, 50, width=32))


def sampler(size: int = len(PROBABILITIES), **options: Any) -> Sampler:
    return Sampler(GenerationOptions(**{"seed": 7, **options}), size)


def drawn(options: dict[str, Any], logits: F32 = LOGITS, count: int = 6_000) -> Counter[int]:
    source = sampler(len(logits), **options)
    return Counter(source.sample(logits) for _ in range(count))


def assert_distributed(found: Counter[int], expected: dict[int, float]) -> None:
    """Chi-square against exact probabilities; the limit is far beyond chance and far below any wrong filter."""
    total = found.total()
    assert set(found) == set(expected)
    mass = sum(expected.values())
    chi = sum((found[i] - total * p / mass) ** 2 / (total * p / mass) for i, p in expected.items())
    assert chi < 5 * len(expected) + 10


def test_temperature_zero_takes_the_highest_logit_and_the_lowest_id_on_ties() -> None:
    tied = np.array([1, 5, 5, 2], np.float32)
    assert sampler(4, temperature=0).sample(tied) == 1


def test_temperature_zero_ignores_the_other_filters() -> None:
    assert sampler(temperature=0, top_k=1, top_p=0, min_p=1).sample(LOGITS) == 1
    assert sampler(temperature=0, top_k=5, top_p=0.3, min_p=0.9).sample(LOGITS) == 1


def test_temperature_zero_heeds_the_penalties() -> None:
    greedy = sampler(temperature=0, presence_penalty=100)
    assert [greedy.sample(LOGITS) for _ in range(7)] == [1, 2, 3, 4, 0, 5, 6]


def test_without_filters_tokens_come_as_often_as_the_softmax_says() -> None:
    assert_distributed(drawn(OFF), dict(enumerate(PROBABILITIES)))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    expected = {i: p ** (1 / temperature) for i, p in enumerate(PROBABILITIES)}
    assert_distributed(drawn(OFF | {"temperature": temperature}), expected)


def test_top_k_keeps_the_k_likeliest() -> None:
    assert_distributed(drawn(OFF | {"top_k": 3}), {1: 0.4, 2: 0.25, 3: 0.15})


def test_top_k_keeps_no_more_than_k_on_ties() -> None:
    assert set(drawn(OFF | {"top_k": 2}, np.zeros(6, np.float32))) == {0, 1}


@pytest.mark.parametrize(("top_p", "kept"), [(0.39, 1), (0.41, 2), (0.6, 2), (0.7, 3), (0.91, 5), (0.999, 7)])
def test_top_p_keeps_the_fewest_tokens_that_hold_the_fraction(top_p: float, kept: int) -> None:
    order = sorted(range(7), key=lambda i: -PROBABILITIES[i])[:kept]
    assert_distributed(drawn(OFF | {"top_p": top_p}), {i: PROBABILITIES[i] for i in order})


def test_top_p_counts_the_probability_after_top_k() -> None:
    # 0.4 of the 0.8 that top-k leaves is a half: one token is enough for it, and was not without top-k.
    assert set(drawn(OFF | {"top_k": 3, "top_p": 0.49})) == {1}
    assert set(drawn(OFF | {"top_p": 0.49})) == {1, 2}


def test_top_p_counts_the_probability_at_the_temperature() -> None:
    flat = [p ** (1 / 4) for p in PROBABILITIES]
    share = flat[1] / sum(flat)
    assert set(drawn(OFF | {"temperature": 4, "top_p": share + 0.01})) == {1, 2}
    assert set(drawn(OFF | {"temperature": 4, "top_p": share - 0.01})) == {1}


@pytest.mark.parametrize(("min_p", "kept"), [(0.2, {1, 2, 3, 4}), (0.3, {1, 2, 3}), (0.7, {1}), (1.0, {1})])
def test_min_p_keeps_tokens_at_least_that_fraction_as_likely_as_the_likeliest(min_p: float, kept: set[int]) -> None:
    assert_distributed(drawn(OFF | {"min_p": min_p}), {i: PROBABILITIES[i] for i in kept})


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_top_p_over_a_large_vocabulary_is_exact(top_p: float, spread: float) -> None:
    logits = (np.random.default_rng(1).standard_normal(20_000) * spread).astype(np.float32)
    weights = np.sort(np.exp((logits - logits.max()).astype(np.float64)))[::-1]
    wanted = int(np.searchsorted(weights.cumsum(), top_p * weights.sum())) + 1
    ids, kept = sampler(len(logits), **OFF | {"top_p": top_p})._candidates(logits, float(logits.max()))
    assert ids is not None
    assert abs(len(ids) - wanted) <= 2  # float32 against float64
    assert np.all(np.diff(kept) <= 0)
    assert len(kept) == len(set(ids.tolist()))


@given(finite_logits, st.data())
def test_every_filter_keeps_the_likeliest_and_any_setting_gives_a_possible_token(
    logits: F32, data: st.DataObject
) -> None:
    options = {
        "temperature": data.draw(st.sampled_from([0.0, 5e-324, 1e-9, 0.7, 100.0])),
        "top_k": data.draw(st.sampled_from([0, 1, 2, 40, 10**30])),
        "top_p": data.draw(st.sampled_from([0.0, 1e-9, 0.5, 1.0])),
        "min_p": data.draw(st.sampled_from([0.0, 1e-9, 0.5, 1.0])),
        "seed": data.draw(st.integers(0, 2**64 - 1)),
    }
    blocked = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=len(logits) - 1))
    logits[blocked] = -math.inf
    if np.isfinite(logits).any():
        assert np.isfinite(logits[sampler(len(logits), **options).sample(logits)])


@given(finite_logits, st.integers(1, 50))
def test_likeliest_is_the_start_of_a_stable_sort(logits: F32, count: int) -> None:
    assert likeliest(logits, count).tolist() == np.argsort(-logits, kind="stable")[:count].tolist()


@given(finite_logits, st.floats(0, 1), st.floats(0, 1))
def test_the_filters_keep_at_least_one_token(logits: F32, top_p: float, min_p: float) -> None:
    weights = np.sort(np.exp(logits - logits.max()))[::-1]
    assert 1 <= top_p_count(weights, float(weights.sum()), top_p) <= len(weights)
    assert 1 <= min_p_count(weights, min_p) <= len(weights)


def test_repetition_divides_positive_and_multiplies_negative_logits() -> None:
    logits = np.array([2, -2, 2, -2], np.float32)
    result = penalized(logits, {0: 1, 1: 3}, repetition=2, presence=0, frequency=0)
    assert result.tolist() == [1, -4, 2, -2]


def test_presence_counts_once_and_frequency_every_time() -> None:
    logits = np.zeros(3, np.float32)
    assert penalized(logits, {0: 1, 1: 3}, repetition=1, presence=0.5, frequency=0.25).tolist() == [-0.75, -1.25, 0]


def test_only_tokens_in_the_window_are_penalized() -> None:
    greedy = sampler(3, temperature=0, presence_penalty=100, penalty_window_tokens=1)
    assert [greedy.sample(np.array([2, 1, 0], np.float32)) for _ in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize(("place", "counts"), [(5, False), (289, False), (290, True), (299, True)])
def test_exactly_the_last_n_tokens_are_penalized(place: int, counts: bool) -> None:
    """BR-31: 300 tokens were generated, 10 of them count."""
    greedy = sampler(400, temperature=0, repetition_penalty=5, penalty_window_tokens=10)
    identity = np.eye(400, dtype=np.float32) * 1000
    assert [greedy.sample(identity[token]) for token in range(300)] == list(range(300))
    logits = np.zeros(400, np.float32)
    logits[[place, 399]] = 2, 1
    assert greedy.sample(logits) == (399 if counts else place)


def test_a_window_of_none_penalizes_nothing() -> None:
    greedy = sampler(2, temperature=0, presence_penalty=100, penalty_window_tokens=0)
    assert [greedy.sample(np.array([2, 1], np.float32)) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("options", [{"temperature": 0}, {}, OFF, {"repetition_penalty": 2.0, "presence_penalty": 1.0}])
def test_the_callers_logits_stay_as_they_are(options: dict[str, Any]) -> None:
    logits = LOGITS.copy()
    logits.flags.writeable = False
    source = sampler(**options)
    for _ in range(5):
        source.sample(logits)
    assert logits.tobytes() == LOGITS.tobytes()


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": 5.0}, OFF | {"temperature": 5.0, "top_p": 0.99}]
)
def test_padding_beyond_the_tokenizer_is_never_chosen(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    source = sampler(1000, **options)
    for _ in range(1000):
        logits = rng.standard_normal(1267).astype(np.float32)
        logits[1000:] += 30
        assert source.sample(logits) < 1000


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"frequency_penalty": 1.0}])
def test_a_logit_that_is_no_number_is_an_error_and_no_token(bad: float, options: dict[str, Any]) -> None:
    source = sampler(**options)
    broken = LOGITS.copy()
    broken[4] = bad
    for _ in range(5):
        source.sample(LOGITS)
    with pytest.raises(NumericalError, match="after 5 tokens") as caught:
        source.sample(broken)
    assert caught.value.step == 5
    assert source.sample(LOGITS) in range(7)


def test_nothing_allowed_is_an_error() -> None:
    with pytest.raises(NumericalError, match="no token is possible"):
        sampler(3).sample(np.full(3, -np.inf, np.float32))


def test_numbers_in_the_padding_do_not_matter() -> None:
    assert sampler(2, temperature=0).sample(np.array([1, 2, math.nan, math.inf], np.float32)) == 1


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_a_seed_repeats_the_same_tokens(seed: int) -> None:
    first, second = sampler(seed=seed, **OFF), sampler(seed=seed, **OFF)
    assert first.seed == seed
    assert [first.sample(LOGITS) for _ in range(50)] == [second.sample(LOGITS) for _ in range(50)]


def test_seeds_differ_from_each_other_and_zero_is_one_of_them() -> None:
    runs = []
    for seed in (0, 1, 2):
        source = sampler(seed=seed, **OFF)
        runs.append(tuple(source.sample(LOGITS) for _ in range(50)))
    assert len(set(runs)) == 3


def test_without_a_seed_one_is_drawn_and_reported() -> None:
    first, second = Sampler(GenerationOptions(**OFF), 7), Sampler(GenerationOptions(**OFF), 7)
    again = sampler(seed=first.seed, **OFF)
    assert first.seed != second.seed
    assert [first.sample(LOGITS) for _ in range(50)] == [again.sample(LOGITS) for _ in range(50)]
