"""The burned-in clock: frame number, scene time and wall time as black and white cells.

Two rows of 64 cells along the lower edge carry 128 bits, most significant first:
frame number (32), scene time in ms (32), wall clock in Unix ms (48), CRC-16 of those (16).
Cells are fractions of the picture, so the code survives scaling and JPEG.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

N_COLUMNS = 64
N_ROWS = 2
HEIGHT_FRACTION = 0.05  # of the picture, both rows together


@dataclass(frozen=True, slots=True)
class CodeReading:
    """What the cells said."""

    frame_number: int
    t_ms: int
    wall_ms: int


def strip_height_px(height: int) -> int:
    """Rows of pixels that the code covers in a picture of `height`."""
    return max(2 * N_ROWS, round(height * HEIGHT_FRACTION))


def write_code(rgb: NDArray[np.uint8], reading: CodeReading) -> None:
    """Draw the cells into `rgb` [height, width, 3], in place."""
    height, width, _ = rgb.shape
    strip = strip_height_px(height)
    bits = np.unpackbits(np.frombuffer(_pack(reading), np.uint8)).reshape(N_ROWS, N_COLUMNS)
    columns = np.arange(width) * N_COLUMNS // width
    rows = np.arange(strip) * N_ROWS // strip
    rgb[height - strip :] = (bits[rows][:, columns] * 255)[..., None]


def read_code(rgb: NDArray[np.uint8]) -> CodeReading | None:
    """Read the cells of a picture [height, width, 3]; None if the checksum does not match."""
    height, width, _ = rgb.shape
    strip = strip_height_px(height)
    if width < N_COLUMNS or height < strip:
        return None
    y = height - strip + _middles(strip, N_ROWS)
    x = _middles(width, N_COLUMNS)
    bits = rgb[y][:, x].mean(axis=2) > 127
    data = np.packbits(bits.reshape(-1)).tobytes()
    if binascii.crc_hqx(data[:14], 0xFFFF) != int.from_bytes(data[14:], "big"):
        return None
    return CodeReading(
        frame_number=int.from_bytes(data[0:4], "big"),
        t_ms=int.from_bytes(data[4:8], "big"),
        wall_ms=int.from_bytes(data[8:14], "big"),
    )


def _middles(n_px: int, n_cells: int) -> NDArray[np.intp]:
    """The middle pixel of each cell, where pixel `i` belongs to cell `i * n_cells // n_px`."""
    edges = -(-np.arange(n_cells + 1) * n_px // n_cells)  # first pixel of each cell
    return (edges[:-1] + edges[1:] - 1) // 2


def _pack(reading: CodeReading) -> bytes:
    body = (
        (reading.frame_number % 2**32).to_bytes(4, "big")
        + (reading.t_ms % 2**32).to_bytes(4, "big")
        + (reading.wall_ms % 2**48).to_bytes(6, "big")
    )
    return body + binascii.crc_hqx(body, 0xFFFF).to_bytes(2, "big")
