"""The parts of the script that need no server."""

import embed
import numpy as np
import pytest


def test_nearest_other_is_never_the_row_itself() -> None:
    angles = np.radians([0, 10, 90, 95])
    nearest, similarities = embed.nearest_others(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert nearest.tolist() == [1, 0, 3, 2]
    assert similarities == pytest.approx(np.cos(np.radians([10, 10, 5, 5])))


def test_table_names_both_sentences_and_shortens_a_long_one() -> None:
    lines = embed.table(["short", "long " * 40], [1, 0], [0.5, 0.25]).splitlines()
    assert [line.split()[0] for line in lines] == ["similarity", "0.50", "0.25"]
    assert lines[1].endswith("long long ...")
    assert lines[2].endswith("...  short")
    assert max(map(len, lines)) <= 12 + 72 + 2 + 72


def test_one_sentence_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        embed.main(["alone"])
    assert "one sentence has no other to be near to: give two or more" in capsys.readouterr().err
