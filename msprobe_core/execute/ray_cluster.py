"""Run tasks on a Ray cluster: on as many machines as there are, which must see the same files."""

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
"""Attempts to reach a head, which may be busy or restarted."""

_CLUSTER_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Whether Ray takes an address that other machines reach. Despite its name, Ray reads it on Linux as well; it is read
when Ray is imported."""
_TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TOKEN_FILE = ".ray/auth_token"  # noqa: S105  # its name


class RayCluster:
    """Runs tasks on a Ray cluster, one per core of it.

    With an address, on the cluster there; without, on one that is started on this machine, listens on the loopback
    interface only, and is ended again. The workers need ``msprobe-core`` installed, and must find dumps and results
    under the same paths.
    """

    name = "ray"

    def check(self, options: ExecutorOptions) -> None:  # noqa: ARG002
        """Raise if Ray is not installed.

        Raises:
            PluginError: it is not; says how to install it.
        """
        _import_ray()

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], options: ExecutorOptions
    ) -> Iterator[tuple[int, R | TaskLost]]:
        """Yield each task's number and result, as they come.

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
        # One core each: polars would take all of a machine.
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
    except Exception as error:  # whatever the library raises, the user can do the same about it
        place = f"at {options.address}" if options.address else "on this machine"
        raise PluginError(
            f"there is no Ray cluster {place} that takes this connection ({' '.join(str(error).split())[:200]}); start "
            "one with 'ray start --head' and give its address as --ray-address HOST:PORT; if it has token "
            f"authentication, put its token into ~/{_TOKEN_FILE} here"
        ) from error


def _check_private(ray: Any) -> None:
    """Raise if other machines could reach a cluster that is started here: who reaches one can run code in it.

    Raises:
        PluginError: they could; Ray was imported earlier, or is an older or newer release that decides otherwise.
    """
    address = str(ray.util.get_node_ip_address())
    if not ipaddress.ip_address(address).is_loopback:
        raise PluginError(
            f"Ray would listen at {address}, where other machines reach it, so no cluster is started here; use "
            f"'--executor processes', set {_CLUSTER_VARIABLE}=0, or start a cluster of your own with "
            "'ray start --head' and give its address as --ray-address HOST:PORT"
        )


class _Head:
    """The head of a cluster, which every few seconds is asked whether it is still there.

    Ray itself would try to reach it for a minute, and then end this process with exit status 1, which stands for a
    difference.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._asked = time.monotonic()
        self._missed = 0

    def check(self) -> None:
        """Raise if it has been gone several times in a row.

        Raises:
            PluginError: it has.
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
    """Have Ray, before it is imported, show the cluster a token if there is one here.

    Since 2.60 ``ray start`` asks for the token where it finds one, but ``ray.init`` with an address shows none unless
    it is told to. Clusters without authentication take it, too.
    """
    has_token = any(os.environ.get(name) for name in _TOKEN_VARIABLES) or (Path.home() / _TOKEN_FILE).is_file()
    if has_token:
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _check_reachable(address: str | None) -> None:
    """Raise if nobody listens at ``HOST:PORT`` or ``ray://HOST:PORT``: Ray itself would try for minutes.

    Raises:
        OSError: nobody does.
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
    """Return the module ``ray``, which is an extra.

    Raises:
        PluginError: it is not installed, or cannot be imported.
    """
    return import_extra("ray", "the executor 'ray' needs", "ray")


@hookimpl
def msprobe_register_executors() -> Sequence[Executor]:
    """Offer the executor of this module."""
    return [RayCluster()]
