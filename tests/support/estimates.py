"""Run ``msprobe estimate`` as a user does, in a directory that shows which files it leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from msprobe_core.cli import main


def command(*arguments):
    return [sys.executable, "-m", "msprobe_core", "estimate", "--scratch", "../scratch", *map(str, arguments)]


def estimate(*arguments, **environment):
    done = subprocess.run(
        command("--json", "numbers.json", *arguments),
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert "msprobe_core/cli" not in done.stderr
    return done


def estimate_here(capfd, *arguments):
    """Run the command in this process, which starts the program only; for errors that do not end Python."""
    with pytest.raises(SystemExit) as ended:
        main(["estimate", "--scratch", "../scratch", "--json", "numbers.json", *map(str, arguments)])
    stdout, stderr = capfd.readouterr()
    return SimpleNamespace(returncode=ended.value.code, stdout=stdout, stderr=stderr)


def numbers():
    return json.loads(Path("numbers.json").read_text())


def write(name, text):
    Path(name).write_text(text)
    return name
