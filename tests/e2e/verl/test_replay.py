"""Two whole runs of which the second has the rollouts of the first again: `msprobe verl compare runs`."""

import pytest


@pytest.mark.slow
def test_a_replayed_run_is_equal_to_the_bit(compare, replayed_pair):
    first, replayed = replayed_pair
    code, verdict, result = compare("runs", replayed.out, first.out, "--exact")
    assert code == 0, result["findings"][:5]
    assert verdict.startswith("AGREE: equal to the bit, all ")
    assert set(result["numbers"]["likeness"]) == {"equal"}
    assert result["numbers"]["likeness"]["equal"] > 30
