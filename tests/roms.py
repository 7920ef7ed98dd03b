"""A Game Boy ROM of 32 KB that scrolls a pattern, for tests."""

from __future__ import annotations

from pathlib import Path

# fills the first row of the map with tile ids, then increments SCX for ever
CODE = bytes([0x21, 0, 0x98, 0x06, 0, 0x78, 0x22, 0x04, 0x20, 0xFB, 0x21, 0x43, 0xFF, 0x34, 0x18, 0xFD])


def write_rom(path: Path, title: bytes = b"TEST") -> None:
    """Writes the ROM with a valid checksum of its header."""
    rom = bytearray(32768)
    rom[0x100:0x104] = bytes([0x00, 0xC3, 0x50, 0x01])  # jump to 0x150
    rom[0x134 : 0x134 + len(title)] = title
    rom[0x150 : 0x150 + len(CODE)] = CODE
    check = 0
    for byte in rom[0x134:0x14D]:
        check = (check - byte - 1) & 0xFF
    rom[0x14D] = check
    path.write_bytes(bytes(rom))
