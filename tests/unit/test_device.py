"""The device table: which names it knows, and what it says of them."""

from __future__ import annotations

import math

import pytest

from attrib.device import lookup, table

PEAKS = {  # name as a driver reports it -> peak GB/s, threads per SM, SMs
    "NVIDIA GB10": (273, 1536, 48),
    "NVIDIA H200": (4814, 2048, 132),
    "NVIDIA H100 80GB HBM3": (3352, 2048, 132),
    "NVIDIA H100 PCIe": (2039, 2048, 114),
    "NVIDIA A100-SXM4-80GB": (2039, 2048, 108),
    "NVIDIA A100 80GB PCIe": (1935, 2048, 108),
    "NVIDIA A100-SXM4-40GB": (1555, 2048, 108),
    "NVIDIA A100-PCIE-40GB": (1555, 2048, 108),
    "NVIDIA GeForce RTX 4090": (1008, 1536, 128),
    "NVIDIA GeForce RTX 5090": (1792, 1536, 170),
    "nvidia l40s": (864, 1536, 142),
    "NVIDIA B200": (8000, 2048, 148),
}
UNKNOWN = (
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 Laptop GPU",
    "NVIDIA GB200",
    "NVIDIA GH200 480GB",
    "NVIDIA L40",
    "NVIDIA A10",
    "NVIDIA H100 NVL",
    "device 0",
    "",
)


@pytest.mark.parametrize("name", PEAKS)
def test_a_reported_name_finds_its_device(name: str) -> None:
    device = lookup(name)
    assert device is not None
    assert (device.peak / 1e9, device.threads_per_sm, device.sms) == pytest.approx(PEAKS[name])


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_similar_name_is_not_taken_for_another_gpu(name: str) -> None:
    assert lookup(name) is None


def test_every_row_is_whole() -> None:
    names = [device.name for _, device in table()]
    assert len(set(names)) == len(names) == len(PEAKS) - 1  # two names share the 40 GB A100
    for _, device in table():
        assert device.source
        for value in (device.peak, device.sms, device.threads_per_sm, device.blocks_per_sm):
            assert math.isfinite(value)
            assert value > 0
    assert sorted(device.name for _, device in table() if device.rate is not None) == ["GB10", "H200"]
