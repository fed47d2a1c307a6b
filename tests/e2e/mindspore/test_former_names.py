"""Imports of scripts written for other releases."""

import pytest
from former_names import former_names, import_former

pytest.importorskip("mindspore")


@pytest.mark.parametrize("name", former_names("msprobe.mindspore"))
def test_imports(name):
    found, expected = import_former(name)
    assert found is expected or callable(found)  # a module that can be called
