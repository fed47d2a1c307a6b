"""A ``python`` that has imported libraries already: its processes are forked off one that has.

A program that imports PyTorch spends more on that than most programs here on all that they do. All else is as usual:
each is a process of its own, with the arguments, variables, directory and streams that its command had, it ends as any
program does, and the command ends as it did. If the command is killed, so is the process. Not so usual: signals that a
program is to handle are sent to its command in vain, this file is at the bottom of its stack, and nothing that it has
imported is taken apart at its end. What is tested with any of these runs in a Python of its own.

    python forked_python.py SOCKET PACKAGES MODULE ...
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing.spawn  # noqa: F401  # it keeps the sys.executable that it finds: the usual one
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

# With other options, such as -W, without a program, or with other releases of the libraries in PYTHONPATH it is the
# usual one. Launchers of ranks give -u.
_COMMAND = """#!{python} -IS
import os, sys
arguments = sys.argv[2:] if sys.argv[1:2] == ["-u"] else sys.argv[1:]
more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if (
    not arguments
    or (arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"))
    or any(place and os.path.exists(os.path.join(place, name)) for place in more for name in {names!r})
):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
import json, signal, socket
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
request = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
socket.send_fds(connection, [len(request).to_bytes(4, "big")], [0, 1, 2])
connection.sendall(request)
for stream in (0, 1, 2):
    os.close(stream)  # or whoever reads them would not see that the program has closed them
status = int(connection.recv(16) or 1)
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@contextlib.contextmanager
def forked_python(
    directory: Path, modules: Sequence[str], options: Sequence[str] = (), packages: Sequence[str] = ()
) -> Iterator[str]:
    """Give the path of a ``python`` whose processes have imported ``modules``; without Linux of the usual one.

    Beside it are programs ``msprobe`` and ``torchrun``, as usual.

    Args:
        directory: A new one, for the program.
        modules: What they have imported.
        options: Of Python, for all processes.
        packages: Further directories from which to import.
    """
    program, address = directory / "python", str(directory / "socket")
    if not hasattr(os, "pidfd_open"):
        program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *options])} "$@"\n')
        program.chmod(0o700)
        yield str(program) if options else sys.executable
        return
    names = sorted({name.partition(".")[0] for name in modules})
    program.write_text(_COMMAND.format(python=sys.executable, address=address, names=names))
    program.chmod(0o700)
    for command, module in (("msprobe", "msprobe_core"), ("torchrun", "torch.distributed.run")):
        (directory / command).write_text(f'#!/bin/sh\nexec {program} -m {module} "$@"\n')
        (directory / command).chmod(0o700)
    log = directory / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, *(options or ("-W", "ignore")), __file__, address, os.pathsep.join(packages), *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        ) as server,
    ):  # fmt: skip
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"ready\n", log.read_text()
            yield str(program)
        finally:
            server.kill()


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    head, streams, _, _ = socket.recv_fds(connection, 4, 3)
    size, data = int.from_bytes(head, "big"), b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data, list(streams)


def _serve(address: str) -> bytes:
    """Fork a process for each command, and tell how it has ended; return, in the process, what it is to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(0, selectors.EVENT_READ)  # which ends when whoever has started this one does
    running: dict[socket.socket, tuple[int, int]] = {}
    os.write(1, b"ready\n")
    while True:
        for key, _ in waiting.select():
            if key.fileobj == 0:
                os._exit(0)
            elif key.fileobj is listener:
                connection = listener.accept()[0]
                request, streams = _receive(connection)
                if not (child := os.fork()):
                    waiting.close()
                    for each in (listener, connection, *running):
                        each.close()
                    for ended, _ in running.values():
                        os.close(ended)
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                        os.close(stream)
                    return request
                for stream in streams:
                    os.close(stream)
                running[connection] = ended, _ = os.pidfd_open(child), child
                waiting.register(connection, selectors.EVENT_READ)
                waiting.register(ended, selectors.EVENT_READ, connection)
            elif isinstance(key.fileobj, socket.socket):  # its command was killed
                os.kill(running[key.fileobj][1], signal.SIGKILL)
                waiting.unregister(key.fileobj)
            else:
                ended, child = running.pop(key.data)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                with contextlib.suppress(KeyError):
                    waiting.unregister(key.data)
                waiting.unregister(ended)
                os.close(ended)
                with contextlib.suppress(OSError):
                    key.data.sendall(str(status).encode())
                key.data.close()


def _run(arguments: list[str], environment: dict[str, str], directory: str, program: str) -> None:
    """Do what Python does with its command line and its variables, and run what they name."""
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable = program
    is_isolated = sys.flags.isolated
    if not is_isolated:
        sys.path[:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    importlib.invalidate_caches()
    first, *rest = arguments
    if first == "-m":
        sys.argv = rest
        sys.path[:0] = [] if is_isolated else [directory]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[:0] = [] if is_isolated else [""]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path[:0] = [] if is_isolated else [str(Path(first).resolve().parent)]
        runpy.run_path(first, run_name="__main__")


def _end(status: int) -> NoReturn:
    """End as Python does, without taking apart what was imported, which takes a second and is written about."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _main(address: str, packages: str, modules: Sequence[str]) -> NoReturn:
    sys.path += filter(None, packages.split(os.pathsep))
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    arguments, environment, directory = json.loads(_serve(address))
    try:
        _run(arguments, environment, directory, str(Path(address).with_name("python")))
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        _end(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
    except BaseException:  # noqa: BLE001  # as Python does
        traceback.print_exc()
        _end(1)
    _end(0)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], sys.argv[3:])
