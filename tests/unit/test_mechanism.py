"""Mechanism arithmetic against hand-worked numbers and the recorded experiments' own."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrib import mechanism as m
from attrib.errors import RefusedError
from tests.conftest import Attrib

GB10, H200 = m.find_device("GB10"), m.find_device("NVIDIA H200")


# ---------------------------------------------------------------- occupancy


@pytest.mark.parametrize(
    ("device", "block", "units", "blocks", "resident", "live"),
    [
        (GB10, 256, 160, 6, 1536, 960),  # the output head of 14B: 160 units a row, 96 of 256 threads idle
        (GB10, 160, 160, 9, 1440, 1440),
        (H200, 256, 160, 8, 2048, 1280),
        (H200, 160, 160, 12, 1920, 1920),
        (H200, 256, 432, 8, 2048, 2048),
        (GB10, 32, None, 24, 768, 768),  # the block cap, not the slots
        (H200, 32, None, 32, 1024, 1024),
        (H200, 1024, None, 2, 2048, 2048),
        (GB10, 1024, None, 1, 1024, 1024),
        (H200, 100, None, 16, 2048, 1600),  # a block holds whole warps: 4 of them, 28 lanes idle
    ],
)
def test_threads(device: m.Device, block: int, units: int | None, blocks: int, resident: int, live: int) -> None:
    found = m.occupancy(device, block, units=units)
    assert (found.blocks, found.resident, found.live) == (blocks, resident, live)


@pytest.mark.parametrize(
    ("block", "registers", "blocks"),
    [
        # a warp of 64 registers takes 2048; a partition of 16384 holds 8 warps, the SM 32
        (256, 64, 4),
        # 65 round up to 2304 a warp: 7 a partition, 28 an SM, 3 blocks of 8
        (256, 65, 3),
        # 96 registers, 640 threads: 3072 a warp, 5 a partition, 20 an SM, one block of 20
        (640, 96, 1),
        (1024, 64, 1),
        # 40: 1280 a warp, 12 a partition, 48 an SM
        (32, 40, 32),
        (128, 40, 12),
        # five warps a block: 168 registers take 5376, 3 a partition, 12 an SM, 2 blocks
        (160, 168, 2),
    ],
)
def test_registers(block: int, registers: int, blocks: int) -> None:
    assert m.occupancy(H200, block, registers).blocks == blocks


def test_a_block_whose_warps_do_not_fit_the_register_file() -> None:
    with pytest.raises(RefusedError, match="no block of 1024 threads fits on an SM of H200: it lacks registers"):
        m.occupancy(H200, 1024, 65)


@pytest.mark.parametrize(
    ("device", "shared", "blocks"),
    [
        (H200, 0, 8),
        (H200, 28 * 1024, 7),  # 28 + 1 KB kept by the system: 228 / 29
        (H200, 56 * 1024, 4),  # exactly 57 KB
        (H200, 56 * 1024 + 1, 3),  # rounded up to 128 bytes more
        (H200, 227 * 1024, 1),
        (GB10, 49 * 1024, 2),
        (GB10, 50 * 1024, 1),
    ],
)
def test_shared_memory(device: m.Device, shared: int, blocks: int) -> None:
    assert m.occupancy(device, 256, shared=shared).blocks == blocks


def test_what_limits_is_named() -> None:
    found = m.occupancy(H200, 256, 64, 56 * 1024)
    assert found.limits == {"threads": 8, "the block cap": 32, "registers": 4, "shared memory": 4}
    assert found.limiter == "registers and shared memory"
    text = "6 × 256 threads an SM on GB10: 1536 of 1536 slots, 960 live, limited by threads"
    assert m.occupancy(GB10, 256, units=160).describe() == text


@pytest.mark.parametrize(
    ("block", "registers", "shared", "text"),
    [
        (0, 0, 0, "0 threads"),
        (1025, 0, 0, "1025 threads"),
        (32, 256, 0, "256 registers"),
        (32, 0, 228 * 1024, "shared"),
    ],
)
def test_what_no_kernel_can_have(block: int, registers: int, shared: int, text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        m.occupancy(H200, block, registers, shared)


@given(st.integers(1, 1024), st.integers(1, 64), st.integers(0, 64 * 1024))
def test_more_of_anything_never_fits_more(block: int, registers: int, shared: int) -> None:
    found = m.occupancy(H200, block, registers, shared)
    assert found.resident <= found.slots
    assert found.live <= found.resident
    assert m.occupancy(H200, block, registers, shared + 128).blocks <= found.blocks
    assert m.occupancy(H200, max(1, block - 32), registers, shared).blocks >= found.blocks


def test_unknown_devices_name_the_known_ones() -> None:
    with pytest.raises(RefusedError, match="there are GB10, H200"):
        m.find_device("H2000")


# ---------------------------------------------------------------- bytes


def test_the_padded_matrix_of_the_record() -> None:
    # 1024 rows × 20 super-blocks × 224 B = 4.59 MB; at 134.8 GB/s about 34 µs
    nbytes = m.matrix_bytes(1024, 5120, "q6_K", 224)
    assert nbytes == 4_587_520
    found = m.streaming(nbytes, GB10, measured=134.8e9)
    assert found.measured == pytest.approx(34.03e-6, rel=1e-3)
    assert found.at_class == pytest.approx(nbytes / 222.5e9)
    assert (found.fastest, found.slowest) == (nbytes / 225e9, nbytes / 220e9)
    assert found.recoverable == pytest.approx(13.41e-6, rel=1e-3)


def test_a_roofline_asks_less_of_a_small_matrix() -> None:
    # H200: 3.5 µs + bytes / 4400 GB/s
    assert m.streaming(44_000_000, H200).at_class == pytest.approx(13.5e-6)
    assert math.isnan(m.streaming(44_000_000, H200).recoverable)
    assert m.streaming(10**9, H200, rate="100:100").at_class == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4587520", 4587520), ("4.59MB", 4590000), ("64MiB", 64 << 20), ("1 gb", 10**9), ("20KiB", 20480), ("7B", 7)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert m.parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "-1", "1.2.3", "5 TB", "0", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(RefusedError, match="not a size"):
        m.parse_bytes(text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1024, 5120, "q9_K", None), "not known"),
        ((1024, 5000, "q6_K", None), "cannot be cut into blocks of 256, which q6_K has"),
        ((0, 256, "q6_K", None), "cannot be cut into blocks of 256, which q6_K has"),
        ((1, 256, "q6_K", 200), "stride of 200"),
    ],
)
def test_what_is_no_matrix(arguments: tuple[int, int, str, int | None], text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        m.matrix_bytes(*arguments)


def test_no_class_is_said() -> None:
    with pytest.raises(RefusedError, match="no class for A100 40GB; give the rate"):
        m.streaming(1000, m.find_device("A100 40GB"))
    with pytest.raises(RefusedError, match="no device is named"):
        m.streaming(1000, None)


# ---------------------------------------------------------------- re-read bytes


def test_halving_the_rows_of_a_warp_doubles_what_is_read_again() -> None:
    # f32 input of 5120: 20 KB a warp; 1024 rows by two make 512 warps
    before, after = (m.reread(1024, 5120, "q6_K", rows, stride=224) for rows in (2, 1))
    assert (before.warps, before.act_bytes, before.total) == (512, 20480, 10_485_760)
    assert after.total == 2 * before.total
    assert before.ratio == pytest.approx(10_485_760 / 4_587_520)
    assert m.reread(5, 256, "q6_K", 2).warps == 3
    assert m.reread(2, 256, "q6_K", 1, "q8").act_bytes == 384  # eight blocks of 48 bytes


@pytest.mark.parametrize(("rows", "act", "text"), [(0, "f32", "0 rows a warp"), (2, "f8", "'f8' are not known")])
def test_what_is_no_mapping(rows: int, act: str, text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        m.reread(1024, 5120, "q6_K", rows, act)


# ---------------------------------------------------------------- commands


def test_commands(attrib: Attrib) -> None:
    base = ("mechanism", "occupancy", "--device", "gb10", "--units", 160)
    found = [attrib(*base, "--block", block, "--json").json() for block in (256, 160)]
    assert [(x["blocks_per_sm"], x["live_threads"], x["slots_per_sm"]) for x in found] == [
        (6, 960, 1536),
        (9, 1440, 1536),
    ]
    assert "limited by shared memory" in attrib(*base, "--block", 256, "--shared", "40KiB").out
    matrix = ("--rows", 1024, "--cols", 5120, "--quant", "q6_k", "--stride", 224)
    document = attrib("mechanism", "bytes", *matrix, "--device", "GB10", "--gbps", 134.8, "--json").json()
    assert document["bytes"] == 4_587_520
    assert document["recoverable_us"] == pytest.approx(13.41, rel=1e-3)
    assert attrib("mechanism", "bytes", "--size", "4.4GB", "--device", "H200", "--json").json()["measured_us"] is None
    assert "4.588 MB: 20.62 µs" in attrib("mechanism", "bytes", *matrix, "--device", "GB10").out
    document = attrib("mechanism", "reread", *matrix, "--from", 2, "--to", 1, "--json").json()
    assert document["to"]["total_bytes"] == 2 * document["from"]["total_bytes"] == 20_971_520
    assert "1,024 warps × 20.5 KB = 20.97 MB" in attrib("mechanism", "reread", *matrix, "--from", 2, "--to", 1).out


def test_commands_refuse(attrib: Attrib) -> None:
    assert "give either --size" in attrib("mechanism", "bytes", "--device", "H200").refusal()
    assert "give either --size" in attrib("mechanism", "bytes", "--size", "1MB", "--rows", 3).refusal()
    assert "not in the table" in attrib("mechanism", "occupancy", "--device", "x", "--block", 32).refusal()
