"""A ``python`` whose processes, and those of the Ray cluster that they start, have imported libraries already.

A run of verl starts a dozen processes, each of which would import the same for four seconds before it does anything.
Ray itself is imported by each, because it reads its variables then.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from forked_python import forked_python

# Ray's agents look for the process that has started them, so they have a Python of their own. A worker is started by a
# script of Ray's, which gives it the variables of its job and then becomes the worker.
_COMMAND = """#!{python} -IS
import json, os, sys
command, arguments = {python!r}, sys.argv[1:]
words = arguments[1:] if arguments[:1] == ["-m"] else arguments
name = words[0].rpartition("/")[2] if words else ""
if name in (*{programs!r}, "default_worker.py"):
    command = {forked!r}
elif name == "setup_worker.py":
    command, option = {forked!r}, "--serialized-runtime-env-context="
    given = next((word[len(option):] for word in arguments if word.startswith(option)), "{{}}")
    for variable, value in (json.loads(given).get("env_vars") or {{}}).items():
        os.environ[variable] = os.path.expandvars(value)
    arguments = [word for word in arguments[1:] if not word.startswith((option, "--language="))]
os.execv(command, [command, *arguments])
"""


@contextlib.contextmanager
def ray_python(directory: Path, modules: Sequence[str], programs: Sequence[str]) -> Iterator[str]:
    """Give the path of a ``python`` whose processes, and those of their clusters, have imported ``modules``.

    Args:
        directory: A new one, for the program.
        modules: What they have imported.
        programs: Names of scripts, and modules, for which that is so; others run in a Python of their own.
    """
    with forked_python(directory, modules) as program:
        if program == sys.executable:  # nothing can be forked here
            yield program
            return
        forked = Path(program).rename(directory / "forked")  # a process takes the other one for its own Python
        Path(program).write_text(_COMMAND.format(python=sys.executable, forked=str(forked), programs=programs))
        Path(program).chmod(0o700)
        yield program
