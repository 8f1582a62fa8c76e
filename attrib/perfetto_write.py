"""Tracks, slices and counters as Perfetto's own protobuf packets. Knows nothing of decode steps.

TrackEvent protobuf and not the JSON trace events, because JSON counts microseconds in doubles, has no units on
counters and no order of tracks, and is ten times the size. The messages are those of the `perfetto` package
(perfetto.dev/docs/reference/synthetic-track-event): names and strings are interned, written where first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    CounterDescriptor,
    DebugAnnotation,
    EventName,
    InternedData,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

Value = str | int | float
SEQUENCE = 1
BATCH = 4096
"""Packets serialized at once: concatenated `Trace` messages are one `Trace`."""


class PacketWriter:
    """Writes one packet sequence to a binary file; `close` writes what is left."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._batch = Trace()
        self._tracks = 0
        self._event_names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._strings: dict[str, int] = {}
        self._fresh = InternedData()
        self._first = True
        self.packets = 0

    @property
    def tracks(self) -> int:
        """Tracks described so far."""
        return self._tracks

    def group(self, name: str, description: str) -> int:
        """The track that others lie under; its id. No process track: the viewer sorts what is in one by name."""
        descriptor = self._descriptor()
        descriptor.name = name
        descriptor.description = description
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        return int(descriptor.uuid)

    def track(self, name: str, parent: int, rank: int, description: str = "") -> int:
        """A track of slices at place `rank` under `parent`; neighbours of one name are drawn as one."""
        descriptor = self._child(name, parent, rank, description)
        descriptor.child_ordering = TrackDescriptor.EXPLICIT
        return int(descriptor.uuid)

    def counter(self, name: str, parent: int, rank: int, unit: str, description: str = "") -> int:
        """A track of numbers in `unit`; counters of one unit share their scale, so that heights compare."""
        descriptor = self._child(name, parent, rank, description)
        descriptor.counter.unit = CounterDescriptor.UNIT_UNSPECIFIED
        descriptor.counter.unit_name = unit
        descriptor.counter.y_axis_share_key = unit
        return int(descriptor.uuid)

    def slice(self, track: int, begin: int, end: int, name: str, values: Mapping[str, Value]) -> None:
        """A slice from `begin` to `end` in ns. Slices of a track must not overlap and come in order of time."""
        packet = self._packet(begin)
        event = packet.track_event
        event.type = TrackEvent.TYPE_SLICE_BEGIN
        event.track_uuid = track
        event.name_iid = self._event_name(name)
        for key, value in values.items():
            self._annotate(event.debug_annotations.add(), key, value)
        self._attach(packet)
        packet = self._packet(end)
        packet.track_event.type = TrackEvent.TYPE_SLICE_END
        packet.track_event.track_uuid = track

    def sample(self, track: int, at: int, value: float) -> None:
        """The value of a counter from `at`, in ns, until its next sample."""
        packet = self._packet(at)
        event = packet.track_event
        event.type = TrackEvent.TYPE_COUNTER
        event.track_uuid = track
        event.double_counter_value = value

    def close(self) -> None:
        """Write the packets not yet written."""
        self._out.write(self._batch.SerializeToString())
        self._batch = Trace()

    def _packet(self, at: int | None = None) -> TracePacket:
        if len(self._batch.packet) >= BATCH:
            self.close()
        packet = self._batch.packet.add()
        packet.trusted_packet_sequence_id = SEQUENCE
        if at is not None:
            packet.timestamp = at
        packet.sequence_flags = (
            TracePacket.SEQ_INCREMENTAL_STATE_CLEARED if self._first else TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        )
        self._first = False
        self.packets += 1
        return packet

    def _descriptor(self) -> TrackDescriptor:
        self._tracks += 1
        descriptor = self._packet().track_descriptor
        descriptor.uuid = self._tracks
        return descriptor

    def _child(self, name: str, parent: int, rank: int, description: str) -> TrackDescriptor:
        descriptor = self._descriptor()
        descriptor.name = name
        descriptor.parent_uuid = parent
        descriptor.sibling_order_rank = rank
        if description:
            descriptor.description = description
        return descriptor

    def _event_name(self, name: str) -> int:
        found = self._event_names.get(name)
        if found is None:
            found = self._event_names[name] = len(self._event_names) + 1
            self._fresh.event_names.append(EventName(iid=found, name=name))
        return found

    def _annotate(self, annotation: DebugAnnotation, key: str, value: Value) -> None:
        iid = self._keys.get(key)
        if iid is None:
            iid = self._keys[key] = len(self._keys) + 1
            self._fresh.debug_annotation_names.add(iid=iid, name=key)
        annotation.name_iid = iid
        if isinstance(value, str):
            string = self._strings.get(value)
            if string is None:
                string = self._strings[value] = len(self._strings) + 1
                self._fresh.debug_annotation_string_values.add(iid=string, str=value.encode())
            annotation.string_value_iid = string
        elif isinstance(value, int):
            annotation.int_value = value
        else:
            annotation.double_value = value

    def _attach(self, packet: TracePacket) -> None:
        """Put strings met for the first time into the packet that uses them."""
        if self._fresh.ByteSize():
            packet.interned_data.CopyFrom(self._fresh)
            self._fresh = InternedData()
