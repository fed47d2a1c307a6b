"""Run tasks on a Ray cluster, on any number of machines, all of which must see the same files."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msprobe_core.errors import PluginError
from msprobe_core.extras import import_extra
from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import ExecutorOptions, TaskLost
from msprobe_core.protocols.comparison import Executor

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE_S = 5.0
_MOST_MISSED = 3
"""Failed attempts in a row to reach a head before it counts as gone; it may be busy or restarting."""

_CLUSTER_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Whether Ray may listen on an address that other machines can reach. Despite the variable's name, Ray reads it on
Linux as well, when Ray is imported."""
_TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TOKEN_FILE = ".ray/auth_token"  # noqa: S105  # the name of a file, not a token


class RayCluster:
    """Runs tasks on a Ray cluster, one per core.

    With an address it uses the cluster at that address. Without one it starts a cluster on this machine, which listens
    on the loopback interface only, and shuts it down afterwards. The workers need ``msprobe-core`` installed, and must
    see dumps and results under the same paths.
    """

    name = "ray"

    def check(self, options: ExecutorOptions) -> None:  # noqa: ARG002
        """Raise if Ray is not installed.

        Raises:
            PluginError: it is not; the message says how to install it.
        """
        _import_ray()

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], options: ExecutorOptions
    ) -> Iterator[tuple[int, R | TaskLost]]:
        """Yield each task's number and result as they finish.

        Raises:
            PluginError: there is no cluster at the address, or it ended before the tasks did.
        """
        if options.address:
            _use_token()
        else:
            os.environ.setdefault(_CLUSTER_VARIABLE, "0")
        ray = _import_ray()
        was_running = ray.is_initialized()
        if not was_running:
            _connect(ray, options)
        # One core per task: polars would otherwise use all cores of a machine.
        remote = ray.remote(num_cpus=1, runtime_env={"env_vars": {"POLARS_MAX_THREADS": "1"}})(function)
        under_way: dict[Any, int] = {remote.remote(task): number for number, task in enumerate(tasks)}
        head = _Head(getattr(ray.get_runtime_context(), "gcs_address", None) or options.address)
        try:
            while under_way:
                head.check()
                done, _ = ray.wait(list(under_way), num_returns=1, timeout=_PATIENCE_S)
                for reference in done:
                    number = under_way.pop(reference)
                    yield number, _result_of(ray, reference)
        finally:
            for reference in under_way:
                ray.cancel(reference)
            if not was_running:
                ray.shutdown()


def _connect(ray: Any, options: ExecutorOptions) -> None:
    here: dict[str, Any] = {"num_cpus": options.workers, "include_dashboard": False}
    if not options.address:
        _check_private(ray)
    try:
        _check_reachable(options.address)
        ray.init(
            address=options.address or "local",
            log_to_driver=False,
            logging_level="ERROR",
            **({} if options.address else here),
        )
    except Exception as error:  # Ray raises many types, and the advice is the same for all
        place = f"at {options.address}" if options.address else "on this machine"
        raise PluginError(
            f"there is no Ray cluster {place} that takes this connection ({' '.join(str(error).split())[:200]}); start "
            "one with 'ray start --head' and give its address as --ray-address HOST:PORT; if it has token "
            f"authentication, put its token into ~/{_TOKEN_FILE} here"
        ) from error


def _check_private(ray: Any) -> None:
    """Raise if other machines could reach a cluster started here, because anyone who reaches one can run code in it.

    Raises:
        PluginError: they could, because Ray was imported earlier or because this release of Ray decides differently.
    """
    address = str(ray.util.get_node_ip_address())
    if not ipaddress.ip_address(address).is_loopback:
        raise PluginError(
            f"Ray would listen at {address}, where other machines reach it, so no cluster is started here; use "
            f"'--executor processes', set {_CLUSTER_VARIABLE}=0, or start a cluster of your own with "
            "'ray start --head' and give its address as --ray-address HOST:PORT"
        )


class _Head:
    """The head of a cluster, checked every few seconds.

    Ray itself would retry for a minute and then end this process with exit status 1, which for this program means that
    a difference was found.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._asked = time.monotonic()
        self._missed = 0

    def check(self) -> None:
        """Raise if the head did not respond several times in a row.

        Raises:
            PluginError: it did not.
        """
        if time.monotonic() - self._asked < _PATIENCE_S:
            return
        self._asked = time.monotonic()
        try:
            _check_reachable(self._address)
        except OSError as error:
            self._missed += 1
            if self._missed == _MOST_MISSED:
                raise PluginError(
                    f"the Ray cluster at {self._address} ended before all pairs were compared "
                    f"({error.strerror or error}); start it again, and repeat the command"
                ) from error
        else:
            self._missed = 0


def _use_token() -> None:
    """Make Ray, before it is imported, send the cluster a token if one is configured here.

    Since 2.60 ``ray start`` requires the token if it finds one, but ``ray.init`` with an address sends none by default.
    Clusters without authentication accept a token as well.
    """
    has_token = any(os.environ.get(name) for name in _TOKEN_VARIABLES) or (Path.home() / _TOKEN_FILE).is_file()
    if has_token:
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _check_reachable(address: str | None) -> None:
    """Raise if no server listens at ``HOST:PORT`` or ``ray://HOST:PORT``; Ray itself would retry for minutes.

    Raises:
        OSError: the connection failed.
    """
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()


def _result_of(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())
        return TaskLost(f"Ray lost the process that compared it ({reason[:300]})")


def _import_ray() -> Any:
    """Import ``ray``, an optional dependency, and return it.

    Raises:
        PluginError: it is not installed, or cannot be imported.
    """
    return import_extra("ray", "the executor 'ray' needs", "ray")


@hookimpl
def msprobe_register_executors() -> Sequence[Executor]:
    """Register the executor of this module."""
    return [RayCluster()]
