"""What commands show of their progress where there is no terminal: a line now and then, in a log."""

import pytest

from msprobe_core.cli.progress import LINE_PERIOD_S, progress_bar


@pytest.fixture
def lines(capfd):
    """Show progress of 10 pairs, one each so many seconds; return the lines."""

    def lines(seconds, *, total=10):
        times = iter(range(0, 10**6, int(seconds)))
        with progress_bar("comparing", clock=lambda: next(times)) as show:
            for done in range(1, 11):
                show(done, total, "[bold]pairs")
        out, err = capfd.readouterr()
        assert out == ""
        return err.splitlines()

    return lines


def test_what_is_short_says_nothing(lines):
    assert lines(LINE_PERIOD_S / 30) == []


def test_what_is_long_says_so_now_and_then(lines):
    assert lines(LINE_PERIOD_S / 3) == [
        "msprobe: comparing [bold]pairs: 30% (3 of 10)",
        "msprobe: comparing [bold]pairs: 60% (6 of 10)",
        "msprobe: comparing [bold]pairs: 90% (9 of 10)",
    ]
    assert lines(LINE_PERIOD_S, total=0)[0] == "msprobe: comparing [bold]pairs: 1"
