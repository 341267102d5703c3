"""Reading a histogram of step sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphkiln.core.graphs.traffic import assumed_traffic, read_traffic


def test_a_histogram_is_read_in_order_of_size(tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    path.write_text('{"32": 40, "1": 900.5, "8": 0}')
    assert read_traffic(path) == {1: 900.5, 8: 0.0, 32: 40.0}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ("{}", "no step was counted"),
        ('{"1": 0}', "no step was counted"),
        ('{"0": 1}', "'0' is not a number of tokens"),
        ('{"-4": 1}', "'-4' is not a number of tokens"),
        ('{"1.5": 1}', "'1.5' is not a number of tokens"),
        ('{"07": 1}', "'07' is not a number of tokens"),
        ('{"1' + "0" * 400 + '": 1}', "000' is not a number of tokens"),
        ('{"many": 1}', "'many' is not a number of tokens"),
        ('{"4": -1}', "-1, the count of 4, is not a number from 0 on"),
        ('{"4": true}', "True, the count of 4, is not a number from 0 on"),
        ('{"4": "9"}', "'9', the count of 4, is not a number from 0 on"),
        ('{"4": NaN}', "NaN is not JSON"),
        ('{"4": 1' + "0" * 400 + "}", "the count of 4 is larger than 1e+18"),
        ('{"4": 1e308, "8": 1e308}', "the count of 4 is larger than 1e+18"),
        ('{"4": 1, "4": 2}', "a key stands twice"),
        ("\xff", "not JSON"),
    ],
)
def test_a_bad_histogram_is_one_line_that_says_what_and_where(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "traffic.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"traffic\.json: ") as refused:
        read_traffic(path)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_histogram_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.json: No such file"):
        read_traffic(tmp_path / "absent.json")
    with pytest.raises(ValueError, match="directory"):
        read_traffic(tmp_path)


def test_without_a_count_each_doubling_weighs_about_the_same() -> None:
    weights = assumed_traffic(256)
    small, large = sum(weights[size] for size in range(9, 17)), sum(weights[size] for size in range(129, 257))
    assert small == pytest.approx(large, rel=0.1)
