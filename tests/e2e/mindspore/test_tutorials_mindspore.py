"""The tutorial on a port to MindSpore is what happens."""

import pytest
from tutorial import MOST_S, follow


@pytest.mark.slow
def test_mindspore_port(tmp_path):
    assert follow("mindspore_port.md", tmp_path, GLOG_v="3")["seconds"] < MOST_S
