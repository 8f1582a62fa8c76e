"""Reading many traces on a Dask cluster: one task a trace, a lost worker's tasks done again by another.

Dask is an optional extra; it is imported when a fleet is read.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

from attrib.attribution import Options
from attrib.errors import RefusedError
from attrib.files import SIGNALS
from attrib.fleet_files import printable
from attrib.fleet_work import measure

CONNECT_S = 15
LOST = "every worker that read it was lost ({attempts} times): it may need more memory than a worker has"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Result:
    """Rows in the order of the paths, and what happened on the way."""

    rows: tuple[dict[str, Any], ...]
    workers: int
    lost_workers: int
    start_s: float
    """until the workers could take a task"""
    read_s: float
    """from the first task to the last row"""


def measure_all(
    paths: Sequence[str],
    options: Options,
    rate_class: str | None,
    workers: int,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """The row of every trace, from `workers` local processes or from the workers of `scheduler`.

    A task whose worker is lost goes to another one; after Dask's limit of lost workers the trace gets a row that says
    so. On Ctrl-C what is under way is cancelled and local workers end. Raises RefusedError where Dask is not
    installed or no scheduler answers.
    """
    begin = time.perf_counter()
    with _client(scheduler, workers) as client:
        from distributed import as_completed  # noqa: PLC0415 - an optional dependency

        ready = time.perf_counter()
        futures = {
            client.submit(measure, os.fsencode(path), options, rate_class, key=f"{printable(path)}#{place}"): place
            for place, path in enumerate(paths)
        }
        rows: list[dict[str, Any]] = [{}] * len(paths)
        seen = set(client.nthreads())
        try:
            for done, future in enumerate(as_completed(futures), 1):
                rows[futures[future]] = _row(future)
                future.release()
                seen |= set(client.nthreads())
                if progress is not None:
                    progress(done, len(paths))
        except BaseException:
            client.cancel(list(futures), force=True)
            raise
        now = set(client.nthreads())
        end = time.perf_counter()
        return Result(tuple(rows), len(now), len(seen - now), ready - begin, end - ready)


def _row(future: Any) -> dict[str, Any]:
    from distributed.scheduler import KilledWorker  # noqa: PLC0415

    if future.status == "finished":
        return dict(future.result())
    error = future.exception() if future.status == "error" else None
    if isinstance(error, KilledWorker):
        return {"reason": LOST.format(attempts=error.allowed_failures + 1)}
    return {"reason": f"the cluster gave it up ({type(error).__name__ if error else future.status}: {error or ''})"}


@contextmanager
def _client(scheduler: str | None, workers: int) -> Iterator[Any]:
    try:
        import dask  # noqa: PLC0415
        from distributed import Client, LocalCluster  # noqa: PLC0415
    except ImportError as error:
        raise RefusedError("a fleet is read by Dask, which is not installed; pip install 'attrib[fleet]'") from error
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=CONNECT_S)
        except (OSError, ValueError, ImportError) as error:  # unreachable, no address, a protocol without its package
            raise RefusedError(f"no Dask scheduler answers at {scheduler!r} ({error})") from error
        with client:
            yield client
        return
    settings = {
        "distributed.admin.tick.limit": "1h",
        "distributed.comm.timeouts.connect": "60s",
        "distributed.worker.profile.enabled": False,  # interrupts a worker a hundred times a second
        "distributed.worker.preload": [measure.__module__],  # imported while the cluster starts
    }
    with dask.config.set(settings):
        with _uninterrupted():
            cluster = LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0",
                silence_logs=logging.CRITICAL,
            )  # fmt: skip
        with cluster, Client(cluster) as client:
            yield client


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C and a polite kill off to the end of the block, and keep Ctrl-C from the processes started in it.

    A cluster that is half started cannot be closed. A terminal sends Ctrl-C to the workers too, which their nannies end
    in good order. Threads and processes inherit the blocked signal, but no handler.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    came: list[int] = []
    previous = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in SIGNALS}
    try:
        if hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()  # starting it later would unblock the signal
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for number, handler in previous.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt
