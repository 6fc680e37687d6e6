"""Which samples are taken: by the seed alone, none twice, each class its share."""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmill.calibration.samples import Array
from onnxmill.calibration.sources import chosen, classes, pick, stream

CLASSES = st.lists(st.sampled_from("aabc") | st.sampled_from([1, 2, 3]), max_size=60)
LIMITS, SEEDS = st.integers(1, 70), st.integers(0, 2**40)


@dataclass(frozen=True)
class Labelled:
    """A source of samples that are their index; reading one that was not chosen is an error."""

    labels: list[object]
    readable: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.labels)

    def sample(self, index: int) -> dict[str, Array]:
        assert index in self.readable
        return {"x": np.array([index])}

    def label(self, index: int) -> Array | None:
        return None if self.labels[index] is None else np.asarray(self.labels[index])

    def origin(self, index: int) -> str:
        return str(index)


@given(CLASSES, LIMITS, SEEDS)
def test_as_many_as_asked_none_twice_in_order(found: list[str | int], limit: int, seed: int) -> None:
    indices = pick(found, limit, seed)
    assert len(indices) == min(limit, len(found))
    assert indices == sorted(set(indices))
    assert all(0 <= index < len(found) for index in indices)
    assert indices == pick(found, limit, seed)


@given(CLASSES.filter(bool), LIMITS, SEEDS)
def test_each_class_has_its_share_to_within_one(found: list[str | int], limit: int, seed: int) -> None:
    taken = Counter(found[index] for index in pick(found, limit, seed))
    for name, count in Counter(found).items():
        share = Fraction(min(limit, len(found)) * count, len(found))
        assert abs(taken[name] - share) < 1


@given(st.lists(st.sampled_from("ab"), min_size=1), LIMITS, SEEDS)
def test_how_classes_are_called_does_not_matter(found: list[str], limit: int, seed: int) -> None:
    assert pick(found, limit, seed) == pick([{"a": 7, "b": 3}[name] for name in found], limit, seed)


def test_the_largest_remainders_decide() -> None:
    found = ["a"] * 50 + ["b"] * 30 + ["c"] * 20
    taken = Counter(found[index] for index in pick(found, 7, 0))  # shares 3.5, 2.1, 1.4
    assert taken == {"a": 4, "b": 2, "c": 1}


def test_more_classes_than_samples_are_drawn_by_the_seed() -> None:
    drawn = [tuple(pick(list(range(1000)), 10, seed)) for seed in range(5)]
    assert len(set(drawn)) == 5
    assert max(max(each) for each in drawn) > 500  # not the first of the classes


def test_every_sample_has_a_chance() -> None:
    seen = Counter(index for seed in range(300) for index in pick([None] * 10, 3, seed))
    assert set(seen) == set(range(10))
    assert all(60 <= count <= 120 for count in seen.values())  # 90 expected, standard deviation 8


def test_these_are_taken_by_default() -> None:
    assert chosen(Labelled([None] * 20), 5) == [2, 4, 6, 13, 19]


@pytest.mark.parametrize("limit", [None, 4, 9])
def test_all_are_taken_where_there_are_no_more(limit: int | None) -> None:
    assert chosen(Labelled([1, 2, 1, 2]), limit, 3) == [0, 1, 2, 3]


def test_a_source_is_stratified_by_its_labels() -> None:
    source = Labelled(["rare" if index % 10 == 0 else "common" for index in range(100)])
    assert [source.labels[index] for index in chosen(source, 20, 5)].count("rare") == 2


@pytest.mark.parametrize(
    ("labels", "one"),
    [
        ([1, 2, 1], False),
        (["cat", "dog", "cat"], False),
        ([True, False, True], False),
        ([[1], [2], [1]], False),
        ([0.5, 0.25, 0.5], True),
        ([[1, 2], [1, 2], [3, 4]], True),
        ([None, None, None], True),
        ([1, None, 2], True),
    ],
)
def test_only_whole_numbers_and_texts_are_classes(labels: list[object], one: bool) -> None:
    assert (len(set(classes(Labelled(labels)))) == 1) == one


def test_no_sample_is_read_before_it_is_taken() -> None:
    source = Labelled([None] * 30, readable=frozenset({3, 5}))
    chosen(source, 10, 0)
    assert [int(sample["x"][0]) for sample in stream(source, [3, 5])] == [3, 5]
